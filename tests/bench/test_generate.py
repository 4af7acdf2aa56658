"""The comparison of generation: ours alone, and beside transformers if they are there."""

import pytest

from paddle_ernie.bench.generate import bench_generate
from tests.bench.tiny import ALONE, TINY, both_sides, needs_rival


@pytest.mark.slow
def test_alone() -> None:
    (result,) = bench_generate(ALONE, TINY, rows=[2], prompt=8, new=4)
    assert [line["mode"] for line in result.values["lines"]] == ["fp32", "bf16", "fp8"]
    line = result.values["lines"][0]
    assert line["prefill"]["tokens_per_s"] == 16 / line["prefill"]["best"]
    assert line["decode"]["tokens_per_s"] == 2 / line["decode"]["best"]


@needs_rival
@pytest.mark.slow
def test_beside_transformers() -> None:
    (result,) = bench_generate(both_sides(), TINY, rows=[2], prompt=8, new=4)
    assert result.values["missing"] == {}
    assert all(ratio > 0 for parts in result.values["ratio"].values() for ratio in parts.values())
