"""Each sweep changes what it says and nothing else."""

from dataclasses import replace

from paddle_ernie.train.bench import Shapes
from paddle_ernie.train.bench_sweeps import sweep_depth, sweep_experts, sweep_seq_len
from tests.train.tiny import TINY

SHAPES = Shapes(model=TINY, rows=2, seq_len=16, steps=1, documents_per_row=1)


def test_experts_add_parameters_and_almost_no_work() -> None:
    few, many = sweep_experts(SHAPES, (4, 16))
    assert (few.value, many.value) == (4, 16)
    assert many.parameters > 1.5 * few.parameters
    assert 1.0 < many.flops / few.flops < 1.1
    assert 0 < few.update_seconds < few.seconds
    assert few.tokens_per_s == few.tokens / few.seconds


def test_rows_become_fewer_as_they_become_longer() -> None:
    points = sweep_seq_len(SHAPES, (8, 32))
    assert [point.tokens for point in points] == [32, 32]
    assert points[0].flops < points[1].flops
    assert points[0].parameters == points[1].parameters


def test_depth() -> None:
    shapes = replace(SHAPES, model=TINY.model_copy(update={"num_nextn_predict_layers": 0}))
    points = sweep_depth(shapes, (2, 4))
    assert points[0].parameters < points[1].parameters
