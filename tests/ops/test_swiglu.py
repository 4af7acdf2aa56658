import warnings

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.quantise import quantise_rows
from paddle_ernie.ops.swiglu import swiglu, swiglu_quantise
from tests.ops.kernels import (
    AVX2,
    AVX512,
    PORTABLE,
    running,
    same_bits,
    tensors,
    value_and_gradients,
)

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])


def test_values_and_gradients(check_operator, rng):
    check_operator(swiglu, reference.swiglu, [2 * rng.standard_normal((5, 8))])


@levels
@settings(max_examples=15)
@given(st.integers(0, 5), st.integers(1, 40), st.floats(0.1, 40), st.integers(0, 2**32 - 1))
def test_kernels_equal_the_plain_body(level, rows, width, size, seed):
    rng = np.random.default_rng(seed)
    x = (size * rng.standard_normal((rows, 2 * width))).astype(np.float32)
    dy = rng.standard_normal((rows, width)).astype(np.float32)
    expected = value_and_gradients(swiglu, [x], [dy], "float64")
    with running(level=level):
        actual = value_and_gradients(swiglu, [x], [dy], "float32")
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@levels
def test_relative_accuracy_over_the_whole_range(level):
    gate = np.linspace(-87, 200, 20_000, dtype=np.float32)
    x = np.stack([gate, np.ones_like(gate)], axis=1)
    with running(level=level):
        y = swiglu(*tensors(x)).numpy()
    expected = reference.swiglu(x.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=4e-7, atol=0)


@levels
def test_extreme_gates_saturate_without_warnings(level):
    (x,) = tensors(np.array([[-200.0, 200.0, 1.0, 1.0]]))
    with warnings.catch_warnings(), running(level=level):
        warnings.simplefilter("error")
        y = swiglu(x)
        y.sum().backward()
    np.testing.assert_allclose(y.numpy(), [[0.0, 200.0]], atol=1e-30)
    np.testing.assert_allclose(x.grad.numpy(), [[0.0, 1.0, 0.0, 200.0]], atol=1e-30)


@levels
@pytest.mark.parametrize("at", [3, 40])  # the gate, and its partner
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_propagate(level, at, value, rng):
    x = rng.standard_normal((2, 74))
    x[1, at] = value
    with running(level=level):
        (tensor,) = tensors(x)
        y = swiglu(tensor)
        y.sum().backward()
    assert not np.isfinite(y.numpy()[1, 3])
    assert np.isfinite(y.numpy()).sum() == y.size - 1
    assert not np.isfinite(tensor.grad.numpy()[1]).all()
    assert np.isfinite(tensor.grad.numpy()[0]).all()


@levels
def test_bits_of_a_row_depend_on_nothing_else(level, rng):
    x = paddle.to_tensor(rng.standard_normal((300, 2 * 100)).astype(np.float32))
    with running(level=level, threads=1):
        y = swiglu(x)
        assert same_bits(swiglu(x[299:]), y[299:])
    with running(level=level, threads=3):
        assert same_bits(swiglu(x), y)


@levels
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (37, 100), (9, 128), (40, 300)])
def test_quantised_bits_are_those_of_the_two_steps(level, power_of_two, rows, width, rng):
    x = 3 * rng.standard_normal((rows, 2 * width)).astype(np.float32)
    x[rows // 2 : rows // 2 + 1, :2] = np.nan, np.inf
    (tensor,) = tensors(x)
    with running(level=level):
        codes, scales = swiglu_quantise(tensor, power_of_two=power_of_two)
        expected = quantise_rows(swiglu(tensor), power_of_two=power_of_two)
    assert same_bits(codes, expected[0])
    assert same_bits(scales, expected[1])
