"""Our side of the generation benchmark, in this process."""

from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.bench.ours.engines import make_engine, random_prompts, run
from paddle_ernie.bench.ours.export import export_model
from paddle_ernie.bench.ours.generate import measure_feature, measure_generation
from paddle_ernie.bench.sides import model_request
from tests.bench.tiny import TINY

LENGTH = TINY.max_position_embeddings


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("subject") / "ours"
    export_model({"model": model_request(TINY), "model_dir": str(path), "public": None})
    return path


def request(folder: Path, **fields: object) -> dict:
    base = {"model_dir": str(folder), "rows": 3, "prompt": 9, "new": 5, "vocab_size": 320}
    return {**base, **fields}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_all_requests_run_to_their_length(folder: Path, precision: str) -> None:
    found = measure_generation(request(folder, mode={"weights": precision}, repeats=2))
    assert [len(ids) for ids in found["tokens"]] == [5, 5, 5]
    assert found["whole"]["samples"] == 2
    assert 0 < found["prefill"]["best"] < found["whole"]["best"] < 10
    assert found["peak_bytes"] > 1e7


def test_prompts_are_those_of_the_rivals() -> None:
    assert random_prompts(8192, 2, 4) == np.random.default_rng(0).integers(0, 8192, (2, 4)).tolist()
    assert random_prompts(8192, 2, 4, seed=1) != random_prompts(8192, 2, 4)


def test_only_a_cache_that_is_asked_for_is_hit(tmp_path: Path) -> None:
    model = model_request(TINY.model_copy(update={"max_position_embeddings": 128}))
    export_model({"model": model, "model_dir": str(tmp_path / "m"), "public": None})
    prompts = random_prompts(320, 2, 70)  # a page has 64 positions
    for options, cached in (({}, 0), ({"enable_prefix_caching": True}, 2 * 64)):
        engine = make_engine(tmp_path / "m", 2, 72, **options)
        for _ in range(2):
            run(engine, prompts, 1)
        assert engine.stats().cached_tokens == cached


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"precision": "bf16"}, {"precision": "fp8"}),
        ({"moe_k": 2}, {"moe_k": 1}),
        ({}, {"routes": True}),
        ({"enable_prefix_caching": True}, {"enable_prefix_caching": True, "hit": True}),
    ],
)
def test_two_ways_take_turns(folder: Path, first: dict, second: dict) -> None:
    found = measure_feature(request(folder, first=first, second=second, rounds=2, part="whole"))
    assert found["first"]["samples"] == found["second"]["samples"] == 2
    assert found["ratio"] == found["first"]["best"] / found["second"]["best"]
    assert found["median_ratio"] > 0
