import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.arrays import CACHE_BYTES
from paddle_ernie.ops.rms_norm import add_rms_norm, rms_norm
from tests.ops.kernels import (
    AVX2,
    AVX512,
    PORTABLE,
    running,
    same_bits,
    tensors,
    value_and_gradients,
)

EPS = 1e-5
levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])


def test_values_and_gradients(check_operator, rng):
    check_operator(
        lambda x, weight: rms_norm(x, weight, EPS),
        lambda x, weight: reference.rms_norm(x, weight, EPS),
        [rng.standard_normal((5, 6)), rng.standard_normal(6)],
    )


@pytest.mark.parametrize("output", [0, 1])
def test_values_and_gradients_of_the_residual_form(check_operator, rng, output):
    check_operator(
        lambda x, delta, weight: add_rms_norm(x, delta, weight, EPS)[output] + 0 * weight,
        lambda x, delta, weight: reference.add_rms_norm(x, delta, weight, EPS)[output],
        [*rng.standard_normal((2, 5, 6)), rng.standard_normal(6)],
    )


@levels
@settings(max_examples=15)
@given(st.integers(0, 40), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_kernels_equal_the_plain_body(level, rows, width, seed):
    rng = np.random.default_rng(seed)
    x, delta, *cotangents = rng.standard_normal((4, rows, width))
    x[:, 0] = 3 + np.abs(x[:, 0])  # the gradient of rows near zero is all cancellation
    arrays = [x, 0.3 * delta, rng.standard_normal(width)]

    def fused(x, delta, weight):
        return add_rms_norm(x, delta, weight, EPS)

    expected = value_and_gradients(fused, arrays, cotangents, "float64")
    with running(level=level):
        actual = value_and_gradients(fused, arrays, cotangents, "float32")
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


@levels
@pytest.mark.parametrize("width", [1, 15, 64, 100])
def test_fused_bits_are_those_of_add_then_norm(level, width, rng):
    inputs = rng.standard_normal((2, 33, width)), rng.standard_normal(width)
    upstream = rng.standard_normal((2, 33, width)).astype(np.float32)
    with running(level=level):
        x, delta, weight = tensors(*inputs[0], inputs[1])
        fused = add_rms_norm(x, delta, weight, EPS)
        paddle.autograd.backward(list(fused), [paddle.to_tensor(u) for u in upstream])
        x2, delta2, weight2 = tensors(*inputs[0], inputs[1])
        total = x2 + delta2
        normed = rms_norm(total, weight2, EPS)
        paddle.autograd.backward([total, normed], [paddle.to_tensor(u) for u in upstream])
    assert same_bits(fused[0], total)
    assert same_bits(fused[1], normed)
    for a, b in ((x, x2), (delta, delta2), (weight, weight2)):
        assert same_bits(a.grad, b.grad)


def test_further_gradients_of_one_summand_leave_the_other_alone(rng):
    """Paddle adds in place into the first gradient that an input receives."""
    x, delta, weight = tensors(*rng.standard_normal((2, 3, 8)), np.ones(8))
    total, normed = add_rms_norm(x, delta, weight, EPS)
    (total.sum() + normed.sum() + 5 * x.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), delta.grad.numpy() + 5, rtol=1e-5)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_inputs_without_gradient(rng, frozen):
    inputs = tensors(*rng.standard_normal((2, 3, 8)), np.ones(8))
    inputs[frozen].stop_gradient = True
    total, normed = add_rms_norm(*inputs, EPS)
    (total.sum() + normed.square().sum()).backward()
    assert [tensor.grad is None for tensor in inputs] == [index == frozen for index in range(3)]


@levels
def test_a_row_has_the_same_bits_alone_and_in_any_batch(level, rng):
    x, delta, weight = tensors(*rng.standard_normal((2, 70, 100)), rng.standard_normal(100))
    with running(level=level):
        whole = add_rms_norm(x, delta, weight, EPS)
        for first, last in ((0, 1), (69, 70), (13, 41)):
            part = add_rms_norm(x[first:last], delta[first:last], weight, EPS)
            assert same_bits(part[0], whole[0][first:last])
            assert same_bits(part[1], whole[1][first:last])


def test_threads_do_not_change_bits(rng):
    x, delta, dy = rng.standard_normal((3, 700, 100)).astype(np.float32)  # 9 pieces of dweight
    results = []
    for threads in (1, 2, 3):
        with running(threads=threads):
            inputs = tensors(x, delta, np.ones(100))
            normed = add_rms_norm(*inputs, EPS)[1]
            normed.backward(paddle.to_tensor(dy))
            results.append([normed, *(tensor.grad for tensor in inputs)])
    for other in results[1:]:
        assert all(map(same_bits, results[0], other))


@levels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_row_only(level, value, rng):
    x = rng.standard_normal((3, 20))
    x[1, 18] = value
    with running(level=level):
        inputs = tensors(x, np.ones(20))
        y = rms_norm(*inputs, EPS)
        y.sum().backward()
    for result in (y.numpy(), inputs[0].grad.numpy()):
        assert np.isnan(result[1]).any()
        assert np.isfinite(result[[0, 2]]).all()
    assert np.isnan(inputs[1].grad.numpy()).any()


def test_many_chunks(rng):
    x = rng.standard_normal((3 * CACHE_BYTES // (64 * 4), 64)).astype(np.float32)
    weight = rng.standard_normal(64).astype(np.float32)
    inputs = tensors(x, weight)
    y = rms_norm(*inputs, EPS)
    np.testing.assert_allclose(y.numpy(), reference.rms_norm(x, weight, EPS), rtol=1e-4, atol=1e-5)
    y.sum().backward()
    scale = 1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS)
    expected = (x * scale).sum(0)
    np.testing.assert_allclose(inputs[1].grad.numpy(), expected, rtol=1e-3, atol=1e-2)


def test_zero_row_stays_finite():
    x, weight = tensors(np.zeros((2, 8)), np.ones(8))
    y = rms_norm(x, weight, EPS)
    y.sum().backward()
    assert not y.numpy().any()
    assert np.isfinite(x.grad.numpy()).all()


def test_no_rows():
    x, weight = tensors(np.empty((0, 8)), np.ones(8))
    y = rms_norm(x, weight, EPS)
    y.sum().backward()
    assert y.shape == [0, 8]
    assert not weight.grad.numpy().any()
