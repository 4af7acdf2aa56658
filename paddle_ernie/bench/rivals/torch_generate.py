"""Greedy generation by transformers: its own `generate`, with its own cache."""

import time

import torch
from protocol import peak_bytes, summary
from torch_train import make_config, random_ids
from transformers import Ernie4_5_MoeForCausalLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@torch.inference_mode()
def measure_generation(request):
    """Seconds until the first new token, and for each one after it."""
    mode = request["mode"]
    if mode["weights"] not in DTYPES:
        raise NotImplementedError(f"not measured in {mode['weights']}")
    torch.manual_seed(0)
    model = Ernie4_5_MoeForCausalLM(make_config(request["model"], mode["experts"]))
    model = model.to(DTYPES[mode["weights"]]).eval()
    ids = random_ids(request["model"], request["rows"], request["prompt"])

    def seconds(new):
        """Of each new token, the first with the prompt's."""
        clock = Clock()
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            use_cache=True,
            streamer=clock,
        )
        assert found.shape[1] == request["prompt"] + new, found.shape
        return clock.seconds

    seconds(2)
    first, each = [], []
    for _ in range(request["repeats"]):
        taken = seconds(request["new"])
        first.append(taken[0])
        each.append(sum(taken[1:]) / (request["new"] - 1))
    return {"prefill": summary(first), "decode": summary(each), "peak_bytes": peak_bytes()}


class Clock:
    """What `generate` hands the prompt and then every token to: notes the time between."""

    def __init__(self):
        self.seconds = []
        self._last = time.perf_counter()

    def put(self, ids):
        """New tokens; the first call brings the prompt."""
        now = time.perf_counter()
        if ids.dim() == 1:  # the prompt is [rows, tokens]
            self.seconds.append(now - self._last)
            self._last = now

    def end(self):
        """Nothing is left to show."""
