import numpy as np
import paddle
import pytest

from paddle_ernie.ops import linear_cross_entropy as module
from paddle_ernie.ops import reference
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy


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
