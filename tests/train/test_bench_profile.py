"""The profile's rows add up to the step, and name what runs in it."""

import re
import time

import paddle
import pytest

from paddle_ernie.train.bench import Shapes, make_stepper, random_batch
from paddle_ernie.train.bench_profile import Clocks, profile_steps
from tests.train.tiny import TINY

SHAPES = Shapes(model=TINY, rows=2, seq_len=16, steps=2)


def test_clocks_are_exclusive() -> None:
    clocks = Clocks()
    inner = clocks.operator(lambda: time.sleep(0.02), "inner")

    def outer() -> None:
        time.sleep(0.01)
        inner()
        inner()

    clocks.phase(outer, "forward")()
    own, called = clocks.clocks["forward", "rest"], clocks.clocks["forward", "inner"]
    assert (own.calls, called.calls) == (1, 2)
    assert 0.01 <= own.seconds < 0.02 < 0.04 <= called.seconds


@pytest.mark.parametrize("by_shape", [False, True])
def test_rows_add_up_and_name_the_operators(by_shape: bool) -> None:
    stepper, backward = make_stepper(TINY, SHAPES), paddle.Tensor.backward
    rows = profile_steps(stepper, random_batch(SHAPES), steps=2, warmup=1, shapes=by_shape)
    assert paddle.Tensor.backward is backward  # nothing stays wrapped
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert rows == sorted(rows, key=lambda row: -row.seconds)
    calls = {(row.phase, row.name): row.calls for row in rows}
    for phase in ("step", "forward", "backward", "update"):
        assert calls[phase, "rest"] == 1
    norms = [
        calls[key]
        for key in calls
        if key[0] == "forward" and "rms_norm" in key[1].lower().replace("rmsnorm", "rms_norm")
    ]
    assert sum(norms) >= 2 * TINY.num_hidden_layers + 1
    assert any(re.search(r" \d+x\d+", name) for _, name in calls) is by_shape
