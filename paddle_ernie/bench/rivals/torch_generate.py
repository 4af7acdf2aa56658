"""Greedy generation by transformers: its own `generate`, and its continuous batching.

Weights come from a folder in the public layout that our side wrote.
"""

import logging
import time

import torch
from protocol import peak_bytes
from timeline import Timeline, describe
from torch_train import random_ids
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAGE = 32  # tokens
RESULT_SECONDS = 300


@torch.inference_mode()
def measure_generation(request):
    """Times of every token of several repeats, and the tokens of the last."""
    mode = request["mode"]
    if mode["weights"] not in DTYPES:
        raise NotImplementedError(f"not measured in {mode['weights']}")
    model = load(request["weights"], DTYPES[mode["weights"]], mode["experts"])
    ids = random_ids({"vocab_size": request["vocab_size"]}, request["rows"], request["prompt"])
    run = _continuous(model, request) if mode.get("continuous") else _generate(model)
    run(ids, 2)
    runs = [run(ids, request["new"]) for _ in range(request["repeats"])]
    return {
        **describe([timeline for timeline, _ in runs]),
        "peak_bytes": peak_bytes(),
        "tokens": runs[-1][1],
    }


def load(folder, dtype, experts):
    """The folder's model, with one of the implementations of experts."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config._attn_implementation = "sdpa"
    config._experts_implementation = experts
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, local_files_only=True
    ).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no end token
    return model


def _generate(model):
    def run(ids, new):
        clock = Clock(len(ids))
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            use_cache=True,
            streamer=clock,
        )
        assert found.shape[1] == ids.shape[1] + new, found.shape
        return clock.timeline, found[:, ids.shape[1] :].tolist()

    return run


def _continuous(model, request):
    """Its engine with pages, run by a thread of its own that lives through all repeats."""
    rows, length = request["rows"], request["prompt"] + request["new"]
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=request["new"]
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=rows * (length // PAGE + 2),
            max_batch_tokens=max(rows * request["prompt"], rows),
        ),
    )
    manager.start()

    def run(ids, new):
        timeline = Timeline()
        names = manager.add_requests(
            inputs=ids.tolist(), max_new_tokens=new, record_timestamps=True
        )
        found = {}
        while len(found) < rows:
            result = manager.get_result(timeout=RESULT_SECONDS)
            assert result is not None, "continuous batching ended without an answer"
            if result.is_finished():
                found[result.request_id] = result
        for name, result in found.items():
            assert len(result.generated_tokens) == new, result.error
            for at in result.timestamps:
                timeline.note(name, 1, at)
        return timeline, [list(found[name].generated_tokens) for name in names]

    return run


class Clock:
    """What `generate` hands the prompt and then every token to: notes when."""

    def __init__(self, rows):
        self.timeline = Timeline(time.perf_counter())
        self._rows = rows

    def put(self, ids):
        """New tokens, one a row; the first call brings the prompt, [rows, tokens]."""
        if ids.dim() == 1:
            for row in range(self._rows):
                self.timeline.note(row, 1)

    def end(self):
        """Nothing is left to show."""
