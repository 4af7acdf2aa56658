import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops.rows import merge_rows, split_rows
from tests.ops.kernels import running


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "rest"), [([3, 1], [0, 2]), ([0, 1, 2, 3], []), ([2, 3, 1, 0], [])]
)
def test_split_and_merge_are_inverse_in_both_directions(dtype, rng, rows, rest):
    check_split_and_merge(rng.standard_normal((4, 2, 3)).astype(dtype), rows, rest)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 6),
    row=st.sampled_from([(1, 1), (0, 4), (7, 33), (300, 70)]),  # the last is cut into pieces
    active=st.integers(1, 6),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_batch(batch, row, active, threads, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(batch)
    x = rng.standard_normal((batch, *row)).astype(np.float32)
    with running(threads=threads):
        check_split_and_merge(x, order[:active], order[active:])


def check_split_and_merge(x: np.ndarray, rows, rest) -> None:
    rows, rest = np.array(rows, np.int64), np.array(rest, np.int64)
    hidden = paddle.to_tensor(x, stop_gradient=False)
    active, idle = split_rows(hidden, rows, rest)
    assert np.array_equal(active.numpy(), x[rows])
    assert idle is None if not len(rest) else np.array_equal(idle.numpy(), x[rest])
    merged = merge_rows(2 * active, idle, rows, rest)
    scale = np.where(np.isin(np.arange(len(x)), rows), 2, 1).astype(x.dtype)[:, None, None]
    assert np.array_equal(merged.numpy(), scale * x)
    cotangent = np.cos(x)
    (merged * paddle.to_tensor(cotangent)).sum().backward()
    assert np.array_equal(hidden.grad.numpy(), scale * cotangent)


def test_a_row_that_does_not_exist_is_refused():
    for row in (-1, 2):
        with pytest.raises(OSError, match=r"rows has an element outside \[0, 2\)"):
            split_rows(paddle.ones([2, 3]), np.array([row]), np.array([], np.int64))
