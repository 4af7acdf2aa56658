import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops import token_logprobs as module
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Numerics
from paddle_ernie.ops.token_logprobs import (
    NO_TARGET,
    log_softmax_rows,
    logprobs_of_logits,
    token_logprobs,
)
from paddle_ernie.utils.errors import InputError
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, same_bits, tensors

AVX512_BF16, AMX = 3, 4
levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512, AVX512_BF16, AMX])
recipes = pytest.mark.parametrize("recipe", [FP32, BF16], ids=["fp32", "bf16"])
LABELS = np.array([3, NO_TARGET, 0, 5, NO_TARGET, 1, 5])


@st.composite
def heads(draw):
    """hidden [T, D], weight [V, D], labels, temperatures, gradients of both results."""
    T, D = draw(st.integers(1, 9)), draw(st.integers(1, 40))
    V = draw(st.one_of(st.integers(1, 20), st.integers(60, 300)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    labels = np.where(rng.random(T) < 0.2, NO_TARGET, rng.integers(0, V, T))
    temperatures = rng.uniform(0.5, 2, T).astype(np.float32)
    return (
        rng.standard_normal((T, D)), rng.standard_normal((V, D)) * 2 / np.sqrt(D), labels,
        temperatures, rng.standard_normal(T), rng.standard_normal(T),
    )  # fmt: skip


def _single(hidden, weight, labels, temperature=1.0, recipe=FP32):
    """(logprobs, entropies) of the kernel, as arrays."""
    inputs = tensors(hidden, weight)
    return [x.numpy() for x in token_logprobs(*inputs, labels, temperature, Numerics(recipe))]


# Values and gradients.


@pytest.mark.parametrize("temperature", [1.0, 0.7, np.linspace(0.5, 2, 7)], ids=str)
@pytest.mark.parametrize("result", [0, 1])
def test_values_and_gradients(check_operator, rng, result, temperature, monkeypatch):
    monkeypatch.setattr(module, "LOSS_CHUNK", 2)
    temperature = np.asarray(temperature, np.float32)
    check_operator(
        lambda hidden, weight: token_logprobs(hidden, weight, LABELS, temperature)[result],
        lambda *arrays: reference.token_logprobs(*arrays, LABELS, temperature)[result],
        [rng.standard_normal((7, 4)), rng.standard_normal((6, 4))],
    )


@levels
@settings(max_examples=12, deadline=None)
@given(heads())
def test_kernel_against_the_reference(level, case):
    hidden, weight, labels, temperatures, dlogprobs, dentropies = case
    with running(level=level):
        inputs = tensors(hidden, weight)
        results = token_logprobs(*inputs, labels, temperatures)
        paddle.autograd.backward(list(results), tensors(dlogprobs, dentropies))
    expected = reference.token_logprobs(hidden, weight, labels, temperatures)
    for found, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), value, rtol=1e-5, atol=1e-5)
    gradients = reference.token_logprobs_gradients(
        hidden, weight, labels, temperatures, dlogprobs, dentropies
    )
    for found, value in zip(inputs, gradients, strict=True):
        np.testing.assert_allclose(found.grad.numpy(), value, rtol=1e-4, atol=2e-5)


@levels
@pytest.mark.parametrize("recipe", [BF16, FP8], ids=["bf16", "fp8"])
def test_kernel_in_bf16(rng, level, recipe):
    """FP8 recipes too: the output layer keeps bf16."""
    hidden, weight = rng.standard_normal((40, 64)), rng.standard_normal((300, 64)) / 8
    labels = rng.integers(0, 300, 40)
    dlogprobs, dentropies = rng.standard_normal((2, 40))
    with running(level=level):
        inputs = tensors(hidden, weight)
        results = token_logprobs(*inputs, labels, 1.0, Numerics(recipe))
        paddle.autograd.backward(list(results), tensors(dlogprobs, dentropies))
    expected = reference.token_logprobs(hidden, weight, labels)
    for found, value in zip(results, expected, strict=True):
        error = np.abs(found.numpy() - value).max()
        assert 1e-5 < error < 2e-2  # rounding to 8 bits shows, and is all there is
    gradients = reference.token_logprobs_gradients(
        hidden, weight, labels, 1.0, dlogprobs, dentropies
    )
    for found, value in zip(inputs, gradients, strict=True):
        error = np.linalg.norm(found.grad.numpy() - value) / np.linalg.norm(value)
        assert 1e-5 < error < 1e-2


@levels
@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 8192, 150_001])
def test_rows_of_logits(rng, level, vocabulary):
    logits = rng.standard_normal((3, vocabulary)).astype(np.float32) * 4 + 30
    labels = rng.integers(0, vocabulary, 3)
    temperatures = np.array([0.5, 1, 3], np.float32)
    with running(level=level):
        (tensor,) = tensors(logits)
        logprobs, entropies = logprobs_of_logits(tensor, labels, temperatures)
        log_p = log_softmax_rows(tensor, temperatures)
    expected = reference.logprobs_of_logits(logits.astype(np.float64), labels, temperatures)
    np.testing.assert_allclose(logprobs.numpy(), expected[0], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(entropies.numpy(), expected[1], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(log_p.numpy()[np.arange(3), labels], logprobs.numpy())
    np.testing.assert_allclose(
        log_p.numpy(), reference.log_softmax_rows(logits.astype(np.float64), temperatures),
        rtol=1e-6, atol=1e-5,
    )  # fmt: skip
    assert log_p.stop_gradient and logprobs.stop_gradient


def test_plain_rows_agree_with_the_kernel(rng, monkeypatch):
    (logits,) = tensors(rng.standard_normal((7, 50)))
    kernel = [*logprobs_of_logits(logits, LABELS, 0.8), log_softmax_rows(logits, 0.8)]
    monkeypatch.setattr(library, "available", lambda x: False)
    plain = [*logprobs_of_logits(logits, LABELS, 0.8), log_softmax_rows(logits, 0.8)]
    for a, b in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)


# Bits.


@levels
@recipes
def test_a_token_does_not_depend_on_its_neighbours(rng, level, recipe, monkeypatch):
    hidden, weight = rng.standard_normal((70, 24)), rng.standard_normal((203, 24))
    labels = rng.integers(0, 203, 70)
    labels[rng.integers(0, 70, 10)] = NO_TARGET
    with running(level=level):
        whole = _single(hidden, weight, labels, recipe=recipe)
        for t in (0, 33, 69):
            alone = _single(hidden[t : t + 1], weight, labels[t : t + 1], recipe=recipe)
            assert [x[0] for x in alone] == [x[t] for x in whole]
        for chunk in (1, 7, 64):
            monkeypatch.setattr(module, "LOSS_CHUNK", chunk)
            for a, b in zip(_single(hidden, weight, labels, recipe=recipe), whole, strict=True):
                np.testing.assert_array_equal(a, b)


@levels
@recipes
def test_loss_is_minus_the_log_probability(rng, level, recipe):
    hidden, weight = rng.standard_normal((40, 24)), rng.standard_normal((203, 24))
    labels = rng.integers(0, 203, 40)
    with running(level=level):
        logprobs, _ = _single(hidden, weight, labels, recipe=recipe)
        for trained in (True, False):
            inputs = tensors(hidden, weight)
            for tensor in inputs:
                tensor.stop_gradient = not trained
            _, losses = linear_cross_entropy(*inputs, labels, np.ones(40), Numerics(recipe))
            np.testing.assert_array_equal(losses, -logprobs)


@levels
def test_equal_logits_give_equal_bits(rng, level):
    """Hidden states times the identity are the logits themselves."""
    logits = rng.standard_normal((9, 77)).astype(np.float32)
    labels = rng.integers(0, 77, 9)
    with running(level=level):
        trained = _single(logits, np.eye(77), labels, 0.6)
        decoded = logprobs_of_logits(paddle.to_tensor(logits), labels, 0.6)
        log_p = log_softmax_rows(paddle.to_tensor(logits), 0.6).numpy()
    for a, b in zip(trained, decoded, strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    np.testing.assert_array_equal(log_p[np.arange(9), labels], trained[0])


@levels
@pytest.mark.parametrize("recipe", [FP32, BF16, FP8], ids=["fp32", "bf16", "fp8"])
def test_decoding_agrees_with_training(rng, level, recipe):
    """Logits of one row at a time against chunks of many."""
    hidden, weight = tensors(rng.standard_normal((9, 70)), rng.standard_normal((203, 70)))
    labels, numerics = rng.integers(0, 203, 9), Numerics(recipe)
    with running(level=level), paddle.no_grad():
        trained = token_logprobs(hidden, weight, labels, 0.6, numerics)
        for t in range(9):
            logits = linear_transposed(hidden[t : t + 1], weight, numerics.high)
            decoded = logprobs_of_logits(logits, labels[t : t + 1], 0.6)
            assert [x.item() for x in decoded] == [x[t].item() for x in trained]


@recipes
def test_threads_change_nothing(rng, recipe):
    arrays = rng.standard_normal((130, 24)), rng.standard_normal((203, 24))
    labels = rng.integers(0, 203, 130)
    results = []
    for threads in (1, 2, 3):
        with running(threads=threads):
            inputs = tensors(*arrays)
            values = token_logprobs(*inputs, labels, 0.9, Numerics(recipe))
            paddle.autograd.backward(list(values))
            results.append([*values, *(x.grad for x in inputs)])
    for other in results[1:]:
        assert all(map(same_bits, results[0], other))


# Values that are not finite.


@levels
def test_minus_infinity_excludes_a_label(level):
    logits = np.array([[1.0, -np.inf, 2.0, -np.inf], [0.5, 0.5, -np.inf, 1.0]], np.float32)
    with running(level=level):
        logprobs, entropies = logprobs_of_logits(paddle.to_tensor(logits), np.array([2, 2]))
        log_p = log_softmax_rows(paddle.to_tensor(logits)).numpy()
    first = reference.logprobs_of_logits(np.array([[1.0, 2.0]]), np.array([1]))
    np.testing.assert_allclose(logprobs.numpy(), [first[0][0], -np.inf], rtol=1e-6)
    np.testing.assert_allclose(entropies.numpy()[0], first[1][0], rtol=1e-6)
    np.testing.assert_array_equal(np.isneginf(log_p), np.isneginf(logits))


@levels
def test_minus_infinity_has_finite_gradients(level):
    hidden, weight = np.full((1, 1), 1e30), np.array([[-1e30], [1e-30], [2e-30]])
    with running(level=level):
        inputs = tensors(hidden, weight)
        logprobs, entropies = token_logprobs(*inputs, np.array([1]))
        paddle.autograd.backward([logprobs, entropies])
        assert np.isfinite([logprobs.item(), entropies.item()]).all()
        assert np.isfinite(inputs[0].grad.item())
        assert inputs[1].grad.numpy()[0] == 0
        assert inputs[1].grad.numpy()[1] > 0


@levels
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_token_stays_alone(rng, level, value):
    hidden, weight = rng.standard_normal((6, 8)), rng.standard_normal((100, 8))
    labels = rng.integers(0, 100, 6)
    with running(level=level):
        whole = _single(hidden, weight, labels)
        hidden[3, 2] = value
        inputs = tensors(hidden, weight)
        results = token_logprobs(*inputs, labels)
        paddle.autograd.backward(list(results))
    others = np.arange(6) != 3
    for found, clean in zip(results, whole, strict=True):
        assert np.isnan(found.numpy()[3])
        np.testing.assert_array_equal(found.numpy()[others], clean[others])
    assert np.isnan(inputs[0].grad.numpy()[3]).all()
    assert np.isfinite(inputs[0].grad.numpy()[others]).all()


@levels
@pytest.mark.parametrize("at", [0, 5, 63, 64, 99])
def test_nan_anywhere_in_a_row(rng, level, at):
    logits = rng.standard_normal((2, 100)).astype(np.float32)
    logits[1, at] = np.nan
    with running(level=level):
        logprobs, entropies = logprobs_of_logits(paddle.to_tensor(logits), np.array([7, 7]))
    assert np.isnan([logprobs[1].item(), entropies[1].item()]).all()
    assert np.isfinite([logprobs[0].item(), entropies[0].item()]).all()


# Edges.


def test_no_tokens():
    hidden, weight = tensors(np.empty((0, 4)), np.ones((5, 4)))
    results = token_logprobs(hidden, weight, np.empty(0, np.int64))
    assert [x.shape for x in results] == [[0], [0]]
    assert log_softmax_rows(paddle.empty([0, 5])).shape == [0, 5]
    assert logprobs_of_logits(paddle.empty([0, 5]), np.empty(0, np.int64))[0].shape == [0]


def test_positions_without_a_target():
    hidden, weight = tensors(np.ones((3, 4)), np.ones((5, 4)))
    logprobs, entropies = token_logprobs(hidden, weight, np.full(3, NO_TARGET))
    paddle.autograd.backward([logprobs, entropies])
    for x in (logprobs, entropies, hidden.grad, weight.grad):
        assert not x.numpy().any()


def test_one_frozen_side(rng):
    for frozen in (0, 1):
        inputs = tensors(rng.standard_normal((7, 4)), rng.standard_normal((6, 4)))
        inputs[frozen].stop_gradient = True
        token_logprobs(*inputs, LABELS)[0].sum().backward()
        assert inputs[frozen].grad is None
        assert inputs[1 - frozen].grad.numpy().any()


@pytest.mark.parametrize("label", [6, -1, -101])
def test_a_label_outside_the_vocabulary(label):
    labels = np.array([1, label])
    with pytest.raises(InputError, match=f"{label} at position 1; expected 0 to 5"):
        token_logprobs(*tensors(np.ones((2, 4)), np.ones((6, 4))), labels)


def test_as_many_labels_as_rows():
    with pytest.raises(InputError, match=r"shape \[3\] for 2 rows"):
        logprobs_of_logits(paddle.ones([2, 6]), np.zeros(3))


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.ones(3)])
def test_temperatures_are_positive(temperature):
    with pytest.raises(InputError, match="one positive number, or 2 of them"):
        log_softmax_rows(paddle.ones([2, 6]), temperature)


MEMORY = """
import resource, numpy as np, paddle
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy
T, V = 8192, 150_000
hidden, weight = paddle.randn([T, 4]), paddle.randn([V, 4])
hidden.stop_gradient = weight.stop_gradient = False
linear_cross_entropy(hidden[:1], weight, np.zeros(1, np.int64), np.ones(1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total, losses = linear_cross_entropy(hidden, weight, np.arange(T), np.ones(T))
total.backward()
assert np.isfinite(losses).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_of_a_large_vocabulary():
    """A chunk of logits, not all of them: 4.9 GB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) << 10 < 1.3 * module.LOSS_CHUNK * 150_000 * 4
