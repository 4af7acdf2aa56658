"""A few cases from end to end: processes, tables, figures."""

import json

import pytest

from paddle_ernie.bench.ops import bench_ops
from paddle_ernie.bench.results import to_json
from tests.bench.tiny import ALONE, TINY, both_sides, needs_rival


def test_alone_on_small_operators() -> None:
    results = {
        result.name: result
        for result in bench_ops(ALONE, TINY, families=["rms_norm", "adamw"], seconds=0.001)
    }
    assert list(results) == ["peak", "rms_norm", "adamw"]
    forward, both = results["rms_norm"].values
    line = forward["formats"]["fp32"]
    assert line["best"] > 0 and line["ratio"] is None and line["theirs"] is None
    assert both["case"].endswith("backward too")
    json.dumps(to_json("ops", 1, list(results.values())))


@needs_rival
@pytest.mark.slow
def test_beside_torch_in_every_way() -> None:
    results = bench_ops(both_sides(), TINY, seconds=0.001)
    for result in results[1:]:
        for case in result.values:
            reasons = set(case["missing"].values()) - {"master weights are fp32"}
            assert not reasons
            for line in case["formats"].values():
                assert line["ratio"] == line["theirs_best"] / line["best"]
            assert case["pairs"]
    experts = next(result for result in results if result.name == "experts").values[0]
    line = experts["formats"]["fp8"]
    assert line["ratio"] == line["ratio_any_format"] <= line["ratio_same_format"]
