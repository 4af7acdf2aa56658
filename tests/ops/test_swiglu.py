import warnings

import numpy as np
import paddle

from paddle_ernie.ops import reference
from paddle_ernie.ops.swiglu import swiglu


def test_values_and_gradients(check_operator, rng):
    check_operator(swiglu, reference.swiglu, [2 * rng.standard_normal((5, 8))])


def test_extreme_gates_saturate_without_warnings():
    x = paddle.to_tensor([[-200.0, 200.0, 1.0, 1.0]], stop_gradient=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = swiglu(x)
        y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [[0.0, 200.0]], atol=1e-30)
    np.testing.assert_allclose(x.grad.numpy(), [[0.0, 1.0, 0.0, 200.0]], atol=1e-30)


def test_many_chunks_equal_one_row_at_a_time(rng):
    x = rng.standard_normal((3000, 256)).astype(np.float32)
    y = swiglu(paddle.to_tensor(x)).numpy()
    assert np.array_equal(y[2999:], swiglu(paddle.to_tensor(x[2999:])).numpy())
    np.testing.assert_allclose(y, reference.swiglu(x.astype(np.float64)), rtol=1e-5, atol=1e-6)
