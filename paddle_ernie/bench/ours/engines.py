"""Our serving engine as the benchmarks use it: all requests at once, greedy, to a fixed length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_ernie.bench.rivals.timeline import Timeline
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.ops.paged_attention import pages_for
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.weights import load_weights
from paddle_ernie.serve.types import GenerateRequest, SamplingParams

Prompts = Sequence[Sequence[int]]
SPARE = 4
"""Times the pages that run at once, so that what a prefix cache holds is not evicted."""


def make_engine(folder: Path, rows: int, length: int, **options: Any) -> Engine:
    """As a server has it by default, with room for `rows` sequences of `length` tokens.

    Without a prefix cache unless it is asked for: repeats have the same prompts.
    """
    chosen = EngineOptions(
        **{
            "max_model_len": length,
            "max_num_seqs": rows,
            "num_pages": SPARE * rows * pages_for(length),
            "enable_prefix_caching": False,
            **options,
        }
    )
    return Engine(load_weights(folder, chosen), Tokenizer.load(folder), chosen)


def random_prompts(vocab_size: int, rows: int, length: int, seed: int = 0) -> list[list[int]]:
    """The same on every side."""
    return np.random.default_rng(seed).integers(0, vocab_size, (rows, length), np.int64).tolist()


def run(
    engine: Engine, prompts: Prompts, new: int, *, routes: bool = False
) -> tuple[Timeline, list[list[int]]]:
    """When each token came, and which they were."""
    sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    timeline = Timeline()
    tokens: dict[str, list[int]] = {}
    for row, ids in enumerate(prompts):
        tokens[str(row)] = []
        engine.add(GenerateRequest(str(row), tuple(ids), sampling, routes=routes))
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].extend(output.token_ids)
            timeline.note(output.request_id, len(output.token_ids))
    assert all(len(ids) == new for ids in tokens.values()), "requests ended early"
    return timeline, list(tokens.values())
