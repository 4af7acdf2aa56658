"""Compare an operator with its reference: values, and gradients with finite differences."""

from collections.abc import Callable, Sequence

import numpy as np
import paddle
import pytest

STEP = 1e-6  # central differences in float64: error about STEP^2 + 1e-16 / STEP


def finite_differences(function: Callable[..., float], arrays: Sequence[np.ndarray], index: int):
    """Gradient of function(*arrays) with respect to arrays[index]."""
    arrays = [array.copy() for array in arrays]
    gradient = np.zeros_like(arrays[index])
    for at in np.ndindex(gradient.shape):
        centre = arrays[index][at]
        sides = []
        for value in (centre + STEP, centre - STEP):
            arrays[index][at] = value
            sides.append(function(*arrays))
        arrays[index][at] = centre
        gradient[at] = (sides[0] - sides[1]) / (2 * STEP)
    return gradient


def _check(operator, reference, arrays: Sequence[np.ndarray], *, tolerance: float = 1e-6) -> None:
    """`operator` takes tensors, `reference` float64 arrays; both return one value."""
    arrays = [np.asarray(array, np.float64) for array in arrays]
    inputs = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
    result = operator(*inputs)
    expected = reference(*arrays)
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance)
    cotangent = np.random.default_rng(0).standard_normal(expected.shape)
    (result * paddle.to_tensor(cotangent)).sum().backward()
    for index, tensor in enumerate(inputs):
        numeric = finite_differences(
            lambda *values: float((reference(*values) * cotangent).sum()), arrays, index
        )
        np.testing.assert_allclose(
            tensor.grad.numpy(), numeric, rtol=1e-5, atol=max(tolerance, 1e-7) * 10,
            err_msg=f"gradient of input {index}",
        )  # fmt: skip
    singles = [paddle.to_tensor(array.astype(np.float32)) for array in arrays]
    np.testing.assert_allclose(operator(*singles).numpy(), expected, rtol=2e-4, atol=2e-5)


@pytest.fixture
def check_operator():
    """check_operator(operator, reference, arrays): float64 values and gradients, fp32 values."""
    return _check


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded."""
    return np.random.default_rng(7)
