import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops.grouped_linear import grouped_linear
from paddle_ernie.ops.linear import linear
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Numerics, Recipe


@pytest.mark.parametrize(
    "counts", [[2, 0, 3, 1], [0, 0, 6, 0], [6, 0, 0, 0], [0, 0, 0, 6], [1, 1, 2, 2]]
)
def test_values_and_gradients(check_operator, rng, counts):
    counts = np.array(counts)
    check_operator(
        lambda x, weight: grouped_linear(x, counts, weight),
        lambda x, weight: reference.grouped_linear(x, counts, weight),
        [rng.standard_normal((6, 3)), rng.standard_normal((4, 3, 2))],
    )


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(1, 40)), min_size=1, max_size=12),
    width_in=st.integers(1, 33),
    width_out=st.integers(1, 33),
    seed=st.integers(0, 1000),
)
def test_any_counts(counts, width_in, width_out, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(counts), width_in)).astype(np.float32)
    weight = rng.standard_normal((len(counts), width_in, width_out)).astype(np.float32)
    y = grouped_linear(paddle.to_tensor(x), np.array(counts), paddle.to_tensor(weight))
    expected = reference.grouped_linear(x.astype(np.float64), np.array(counts), weight)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_experts_without_tokens_get_a_zero_gradient(rng):
    weight = paddle.to_tensor(rng.standard_normal((3, 4, 2)), stop_gradient=False)
    x = paddle.to_tensor(rng.standard_normal((5, 4)))
    grouped_linear(x, np.array([0, 5, 0]), weight).sum().backward()
    gradient = weight.grad.numpy()
    assert not gradient[[0, 2]].any()
    assert gradient[1].all()


def test_no_tokens_at_all():
    weight = paddle.ones([3, 4, 2])
    weight.stop_gradient = False
    x = paddle.empty([0, 4])
    x.stop_gradient = False
    y = grouped_linear(x, np.zeros(3, np.int64), weight)
    assert y.shape == [0, 2]
    y.sum().backward()
    assert not weight.grad.numpy().any()


@pytest.mark.parametrize("plain", [False, True], ids=["kernels", "plain"])
@pytest.mark.parametrize("recipe", [FP32, BF16, FP8, Recipe("fp8", "fp8", "fp8", True)])
def test_an_expert_alone_gives_the_same_bits(recipe, plain, rng, monkeypatch):
    """Values and gradients of each group equal those of `linear` on its rows.

    Paddle's own product may depend on where rows lie: there, nearly equal.
    """
    if plain:
        monkeypatch.setattr(library, "available", lambda x: False)
    counts = np.array([0, 130, 1, 33])
    x = rng.standard_normal((counts.sum(), 140)).astype(np.float32)
    weight = rng.standard_normal((4, 140, 36)).astype(np.float32)
    dy = rng.standard_normal((counts.sum(), 36)).astype(np.float32)

    def run(operator, *arrays):
        tensors = [paddle.to_tensor(array, stop_gradient=False) for array in arrays[:2]]
        y = operator(*tensors)
        y.backward(paddle.to_tensor(arrays[2]))
        return [y.numpy(), *(tensor.grad.numpy() for tensor in tensors)]

    y, dx, dweight = run(
        lambda x, weight: grouped_linear(x, counts, weight, Numerics(recipe)), x, weight, dy
    )
    start = 0
    for expert, count in enumerate(counts):
        rows = slice(start, start := start + count)
        single = run(
            lambda x, weight: linear(x, weight, Numerics(recipe)), x[rows], weight[expert], dy[rows]
        )
        for found, expected in zip((y[rows], dx[rows], dweight[expert]), single, strict=True):
            if plain:
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
            else:
                np.testing.assert_array_equal(found, expected)
