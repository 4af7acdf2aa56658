import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.adamw import AdamWStep, adamw, sum_of_squares
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
BETAS = (0.9, 0.95)
PIECE = 1 << 16  # of the kernel


class Case:
    """Random parameters with their moments and gradients, some of them missing."""

    def __init__(self, sizes: list[int], dtype: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes, self.decays = sizes, [bool(rng.integers(2)) for _ in sizes]
        self.weights = [rng.standard_normal(size).astype(dtype) for size in sizes]
        self.grads = [rng.standard_normal(size).astype(dtype) for size in sizes]
        self.missing = [bool(rng.integers(4) == 0) for _ in sizes]
        self.first = rng.standard_normal(sum(sizes)).astype(dtype)
        self.second = (rng.standard_normal(sum(sizes)) ** 2).astype(dtype)

    def numbers(self, step: int, scale: float = 1.0) -> AdamWStep:
        return AdamWStep(1e-2, *BETAS, BETAS[0] ** step, BETAS[1] ** step, 1e-8, 0.1, scale)

    def run(self, step: int, scale: float = 1.0) -> list[np.ndarray]:
        """Parameters, then both moments, after one step."""
        parameters = [paddle.to_tensor(array) for array in self.weights]
        gradients = [
            None if missing else paddle.to_tensor(array)
            for array, missing in zip(self.grads, self.missing, strict=True)
        ]
        moments = paddle.to_tensor(self.first), paddle.to_tensor(self.second)
        adamw(parameters, gradients, self.decays, *moments, self.numbers(step, scale))
        return [tensor.numpy() for tensor in (*parameters, *moments)]

    def expected(self, step: int, scale: float = 1.0) -> list[np.ndarray]:
        ends = np.cumsum(self.sizes)[:-1]
        moments = zip(np.split(self.first, ends), np.split(self.second, ends), strict=True)
        results = [
            reference.adamw(
                weight.astype(np.float64),
                np.zeros(len(weight)) if missing else scale * grad.astype(np.float64),
                (first.astype(np.float64), second.astype(np.float64)),
                step=step,
                learning_rate=1e-2,
                betas=BETAS,
                epsilon=1e-8,
                weight_decay=0.1 if decay else 0.0,
            )
            for weight, grad, missing, decay, (first, second) in zip(
                self.weights, self.grads, self.missing, self.decays, moments, strict=True
            )
        ]
        parameters, first, second = zip(*results, strict=True)
        return [*parameters, np.concatenate(first), np.concatenate(second)]


@levels
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    step=st.integers(1, 1000),
    scale=st.floats(1e-3, 1),
    seed=st.integers(0, 1000),
)
def test_kernel(level, sizes, step, scale, seed):
    case = Case(sizes, "float32", seed)
    with running(level=level):
        actual = case.run(step, scale)
    for got, want in zip(actual, case.expected(step, scale), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_plain_body():
    case = Case([7, 1, 70_000, 3], "float64")
    for got, want in zip(case.run(3, 0.5), case.expected(3, 0.5), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_twenty_steps_like_paddle(rng):
    """To an ulp or two of the largest weights: their kernel rounds more often."""
    shapes = [(30, 7), (7,), (1001,)]
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    theirs = [paddle.create_parameter(list(shape), "float32") for shape in shapes]
    ours = [paddle.to_tensor(array) for array in weights]
    for parameter, array in zip(theirs, weights, strict=True):
        parameter.set_value(array)
    rival = paddle.optimizer.AdamW(1e-2, *BETAS, parameters=theirs, weight_decay=0.1)
    moments = paddle.zeros([sum(p.size for p in ours)]), paddle.zeros([sum(p.size for p in ours)])
    for step in range(1, 21):
        grads = [paddle.to_tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad
        rival.step()
        numbers = AdamWStep(1e-2, *BETAS, BETAS[0] ** step, BETAS[1] ** step, 1e-8, 0.1, 1.0)
        adamw(ours, grads, [True] * 3, *moments, numbers)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-6, atol=1e-6)


@levels
def test_bits_do_not_depend_on_threads(level):
    case, results = Case([3 * PIECE + 5, 17, PIECE, 1], "float32"), []
    for threads in (1, 4):
        with running(level=level, threads=threads):
            total = sum_of_squares([paddle.to_tensor(array) for array in case.grads])
            results.append([np.float64(total), *case.run(2)])
    for one, four in zip(*results, strict=True):
        assert one.tobytes() == four.tobytes()


@pytest.mark.parametrize("cut", [1, 16, 37, PIECE])
@levels
def test_an_element_does_not_depend_on_where_its_tensor_begins(level, cut):
    """Parameters of a shard give the bits of the whole."""
    whole, parts = Case([2 * PIECE], "float32"), Case([cut, 2 * PIECE - cut], "float32")
    parts.first, parts.second = whole.first, whole.second
    parts.weights = np.split(whole.weights[0], [cut])
    parts.grads = np.split(whole.grads[0], [cut])
    parts.decays, parts.missing = whole.decays * 2, whole.missing * 2
    with running(level=level):
        left, right, *moments = parts.run(2)
        expected, *expected_moments = whole.run(2)
    assert np.concatenate([left, right]).tobytes() == expected.tobytes()
    assert [m.tobytes() for m in moments] == [m.tobytes() for m in expected_moments]


@dtypes
def test_a_missing_gradient_is_a_gradient_of_zeros(dtype):
    missing, zero = Case([40, 3], dtype), Case([40, 3], dtype)
    missing.missing, zero.missing = [True, True], [False, False]
    zero.grads = [np.zeros_like(array) for array in zero.grads]
    for one, other in zip(missing.run(2), zero.run(2), strict=True):
        assert one.tobytes() == other.tobytes()
    assert (np.abs(missing.run(2)[-2]) < np.abs(missing.first)).all()


@dtypes
def test_gradients_with_strides(dtype):
    """Paddle's transpose leaves the memory as it is."""
    values = np.arange(12).reshape(3, 4).astype(dtype)
    strided = paddle.to_tensor(values).transpose([1, 0])
    assert not strided.is_contiguous()
    moments = paddle.zeros([12], dtype), paddle.zeros([12], dtype)
    numbers = AdamWStep(1e-2, 0.0, 0.0, 0.0, 0.0, 1e-8, 0.0, 1.0)
    adamw([paddle.zeros([4, 3], dtype)], [strided], [False], *moments, numbers)
    assert np.array_equal(moments[0].numpy().reshape(4, 3), values.T)


@levels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 37, 39])
def test_bad_values_show(level, value, at):
    case = Case([40, 3], "float32")
    case.missing = [False, False]
    case.grads[0][at] = value
    with running(level=level):
        weight, other, _, _ = case.run(2)
        total = sum_of_squares([paddle.to_tensor(array) for array in case.grads])
    assert np.flatnonzero(np.isnan(weight)).tolist() == [at]
    assert np.isfinite(other).all()
    assert math.isnan(total) if math.isnan(value) else total == math.inf


@levels
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=5), st.floats(1e-30, 1e18), st.integers(0, 99))
def test_sum_of_squares(level, sizes, size, seed):
    rng = np.random.default_rng(seed)
    arrays = [(size * rng.standard_normal(count)).astype(np.float32) for count in sizes]
    with running(level=level):
        total = sum_of_squares([paddle.to_tensor(array) for array in arrays])
    expected = math.fsum(float(x) ** 2 for array in arrays for x in array)
    assert total == pytest.approx(expected, rel=1e-14)


@dtypes
def test_sum_of_squares_of_many(dtype, rng):
    values = rng.standard_normal(1_000_017).astype(dtype)
    expected = float((values.astype(np.float64) ** 2).sum())
    assert sum_of_squares([paddle.to_tensor(values)]) == pytest.approx(expected, rel=1e-12)


def test_moments_that_are_too_short_are_refused():
    numbers = Case([3], "float32").numbers(1)
    with pytest.raises(OSError, match="moments have fewer elements"):
        adamw([paddle.ones([3])], [None], [True], paddle.zeros([2]), paddle.zeros([2]), numbers)
