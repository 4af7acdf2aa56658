import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops import linear_cross_entropy as module
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy
from paddle_ernie.ops.numerics import BF16, FP32, Numerics
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, same_bits, tensors

AVX512_BF16, AMX = 3, 4
levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512, AVX512_BF16, AMX])


@pytest.fixture(params=[2048, 2])
def chunk(request, monkeypatch) -> int:
    monkeypatch.setattr(module, "LOSS_CHUNK", request.param)
    return request.param


def test_values_and_gradients(check_operator, rng, chunk):
    labels = np.array([3, -100, 0, 5, -100, 1, 5])
    weights = rng.random(7)
    check_operator(
        lambda hidden, weight: linear_cross_entropy(hidden, weight, labels, weights)[0],
        lambda *a: np.float64(reference.linear_cross_entropy(*a, labels, weights)[0]),
        [rng.standard_normal((7, 4)), rng.standard_normal((6, 4))],
    )


def test_token_losses(rng, chunk):
    labels = np.array([3, -100, 0, 5, -100, 1, 5])
    hidden, weight = rng.standard_normal((7, 4)), rng.standard_normal((6, 4))
    _, losses = linear_cross_entropy(
        paddle.to_tensor(hidden.astype(np.float32)), paddle.to_tensor(weight.astype(np.float32)),
        labels, np.ones(7),
    )  # fmt: skip
    _, expected = reference.linear_cross_entropy(hidden, weight, labels, np.ones(7))
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


def test_upstream_factor_scales_the_gradients(rng):
    labels, ones = np.array([1, 2]), np.ones(2)
    gradients = []
    for factor in (1.0, 3.0):
        inputs = [paddle.to_tensor(np.eye(n, 3) + 0.1, stop_gradient=False) for n in (2, 4)]
        (factor * linear_cross_entropy(*inputs, labels, ones)[0]).backward()
        gradients.append([x.grad.numpy() for x in inputs])
    for single, triple in zip(*gradients, strict=True):
        np.testing.assert_allclose(3 * single, triple)


def test_no_targets():
    hidden = paddle.ones([3, 4])
    hidden.stop_gradient = False
    total, losses = linear_cross_entropy(hidden, paddle.ones([5, 4]), np.full(3, -100), np.ones(3))
    total.backward()
    assert float(total) == 0
    assert not losses.any()
    assert not hidden.grad.numpy().any()


def test_a_frozen_output_layer_gets_no_gradient(rng):
    hidden = paddle.to_tensor(rng.standard_normal((2, 4)), stop_gradient=False)
    weight = paddle.to_tensor(rng.standard_normal((5, 4)))
    linear_cross_entropy(hidden, weight, np.array([1, 2]), np.ones(2))[0].backward()
    assert weight.grad is None
    assert hidden.grad.numpy().all()


def _gradients(hidden, weight, labels, weights, recipe=FP32):
    """(total, losses, dhidden, dweight) of the kernel."""
    inputs = tensors(hidden, weight)
    total, losses = linear_cross_entropy(*inputs, labels, weights, Numerics(recipe))
    total.backward()
    return [total, paddle.to_tensor(losses), *(x.grad for x in inputs)]


def _expected(hidden, weight, labels, weights):
    zeros = np.zeros(len(labels))
    return [
        *reference.linear_cross_entropy(hidden, weight, labels, weights),
        *reference.token_logprobs_gradients(hidden, weight, labels, 1.0, -weights, zeros),
    ]


@levels
@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 40), width=st.integers(1, 40), vocabulary=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_kernel_against_the_reference(level, tokens, width, vocabulary, seed):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((tokens, width))
    weight = rng.standard_normal((vocabulary, width)) * 2 / np.sqrt(width)
    labels = np.where(rng.random(tokens) < 0.2, -100, rng.integers(0, vocabulary, tokens))
    weights = rng.random(tokens)
    with running(level=level):
        found = _gradients(hidden, weight, labels, weights)
    for a, b in zip(found, _expected(hidden, weight, labels, weights), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=2e-5)


@levels
def test_kernel_in_bf16(rng, level):
    hidden, weight = rng.standard_normal((40, 64)), rng.standard_normal((300, 64)) / 8
    labels, weights = rng.integers(0, 300, 40), rng.random(40)
    with running(level=level):
        found = _gradients(hidden, weight, labels, weights, BF16)
    for a, b in zip(found, _expected(hidden, weight, labels, weights), strict=True):
        error = np.linalg.norm(a.numpy() - b) / np.linalg.norm(b)
        assert 1e-7 < error < 1e-2


@pytest.mark.parametrize("recipe", [FP32, BF16], ids=["fp32", "bf16"])
def test_threads_change_nothing(rng, recipe, monkeypatch):
    monkeypatch.setattr(module, "LOSS_CHUNK", 50)
    hidden, weight = rng.standard_normal((130, 24)), rng.standard_normal((203, 24))
    labels, weights = rng.integers(0, 203, 130), rng.random(130)
    results = []
    for threads in (1, 2, 3):
        with running(threads=threads):
            results.append(_gradients(hidden, weight, labels, weights, recipe))
    for other in results[1:]:
        assert all(map(same_bits, results[0], other))


def test_chunks_change_no_token(rng, monkeypatch):
    hidden, weight = rng.standard_normal((130, 24)), rng.standard_normal((203, 24))
    labels, weights = rng.integers(0, 203, 130), rng.random(130)
    whole = _gradients(hidden, weight, labels, weights)
    monkeypatch.setattr(module, "LOSS_CHUNK", 33)
    chunked = _gradients(hidden, weight, labels, weights)
    assert all(map(same_bits, whole[:3], chunked[:3]))
    np.testing.assert_allclose(whole[3].numpy(), chunked[3].numpy(), rtol=1e-5, atol=1e-6)


def test_a_weight_is_packed_once(rng):
    hidden, weight = tensors(rng.standard_normal((5, 4)), rng.standard_normal((6, 4)))
    numerics, made = Numerics(), []
    cached = numerics.packs.get

    def counting(tensor, key, make):
        return cached(tensor, key, lambda: made.append(key) or make())

    numerics.packs.get = counting
    for _ in range(3):
        linear_cross_entropy(hidden, weight, np.arange(5), np.ones(5), numerics)
    assert len(made) == 2  # for logits and for the gradient of the hidden states


def test_single_precision_without_the_kernels(rng, monkeypatch):
    hidden, weight = rng.standard_normal((7, 4)), rng.standard_normal((6, 4))
    labels, weights = np.array([3, -100, 0, 5, -100, 1, 5]), rng.random(7)
    monkeypatch.setattr(library, "available", lambda x: False)
    found = _gradients(hidden, weight, labels, weights)
    for a, b in zip(found, _expected(hidden, weight, labels, weights), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-5)
