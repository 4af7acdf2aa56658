import numpy as np
import paddle
import pytest

from paddle_ernie.ops.rows import merge_rows, split_rows


@pytest.mark.parametrize(
    ("rows", "rest"), [([3, 1], [0, 2]), ([0, 1, 2, 3], []), ([2, 3, 1, 0], [])]
)
def test_split_and_merge_are_inverse_in_both_directions(rng, rows, rest):
    rows, rest = np.array(rows, np.int64), np.array(rest, np.int64)
    x = rng.standard_normal((4, 2, 3))
    hidden = paddle.to_tensor(x, stop_gradient=False)
    active, idle = split_rows(hidden, rows, rest)
    assert np.array_equal(active.numpy(), x[rows])
    merged = merge_rows(2 * active, idle, rows, rest)
    scale = np.where(np.isin(np.arange(4), rows), 2.0, 1.0)[:, None, None]
    assert np.array_equal(merged.numpy(), scale * x)
    cotangent = rng.standard_normal(x.shape)
    (merged * paddle.to_tensor(cotangent)).sum().backward()
    assert np.array_equal(hidden.grad.numpy(), scale * cotangent)
