"""Our greedy generation of several rows at once, prefill and decode apart."""

import time
from typing import Any

import numpy as np
import paddle

from paddle_ernie.bench.rivals.protocol import peak_bytes, summary
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.ops.arrays import view
from paddle_ernie.train.bench import make_network


def measure_generation(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds until the first new token, and for each one after it."""
    config = ModelConfig(**request["model"])
    model = make_network(config, request["mode"]["weights"])
    model.eval()
    shape = (request["rows"], request["prompt"])
    prompt_BS = np.random.default_rng(0).integers(0, config.vocab_size, shape, np.int64)
    _generate(model, prompt_BS, 2)
    first, each = [], []
    for _ in range(request["repeats"]):
        seconds = _generate(model, prompt_BS, request["new"])
        first.append(seconds[0])
        each.append(sum(seconds[1:]) / (request["new"] - 1))
    return {"prefill": summary(first), "decode": summary(each), "peak_bytes": peak_bytes()}


@paddle.no_grad()
def _generate(model: ErnieMoeModel, prompt_BS: np.ndarray, new: int) -> list[float]:
    """Seconds of each of `new` tokens, the first with the prompt's."""
    cache = KVCache(model.config.num_hidden_layers, prompt_BS.shape[1] + new)
    numerics, ids_BS, seconds = model.numerics(), prompt_BS, []
    for _ in range(new):
        started = time.perf_counter()
        logits_BV = view(model.logits(ids_BS, cache=cache, last_only=True, numerics=numerics))[:, 0]
        ids_BS = logits_BV.argmax(axis=1)[:, None]
        seconds.append(time.perf_counter() - started)
    return seconds
