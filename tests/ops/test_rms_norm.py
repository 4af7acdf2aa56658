import numpy as np
import paddle

from paddle_ernie.ops import reference
from paddle_ernie.ops.arrays import CACHE_BYTES
from paddle_ernie.ops.rms_norm import rms_norm


def test_values_and_gradients(check_operator, rng):
    check_operator(
        lambda x, weight: rms_norm(x, weight, 1e-5),
        lambda x, weight: reference.rms_norm(x, weight, 1e-5),
        [rng.standard_normal((5, 6)), rng.standard_normal(6)],
    )


def test_many_chunks(rng):
    x = rng.standard_normal((3 * CACHE_BYTES // (64 * 4), 64)).astype(np.float32)
    weight = rng.standard_normal(64).astype(np.float32)
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in (x, weight)]
    y = rms_norm(*tensors, 1e-5)
    np.testing.assert_allclose(y.numpy(), reference.rms_norm(x, weight, 1e-5), rtol=1e-4, atol=1e-5)
    y.sum().backward()
    expected = (x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + 1e-5)).sum(
        0
    )
    np.testing.assert_allclose(tensors[1].grad.numpy(), expected, rtol=1e-3, atol=1e-2)


def test_zero_row_stays_finite():
    x = paddle.zeros([2, 8])
    x.stop_gradient = False
    y = rms_norm(x, paddle.ones([8]), 1e-5)
    y.sum().backward()
    assert not y.numpy().any()
    assert np.isfinite(x.grad.numpy()).all()


def test_no_rows():
    assert rms_norm(paddle.empty([0, 8]), paddle.ones([8]), 1e-5).shape == [0, 8]
