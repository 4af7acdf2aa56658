import weakref

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.router import route, routing_weights, select_experts
from paddle_ernie.utils.errors import InputError
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, same_bits, tensors

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])


def softmax(scores: np.ndarray) -> np.ndarray:
    return reference.router_probabilities(scores.astype(np.float64), np.eye(scores.shape[1]))


def random_record(rng, tokens: int, experts: int, top_k: int) -> np.ndarray:
    every = np.tile(np.arange(experts, dtype=np.int32), (tokens, 1))
    return rng.permuted(every, axis=1)[:, :top_k]


def gradient_of_scores(scores, bias, top_k, record, cotangents, dtype) -> np.ndarray:
    """Of sum(weights * cotangents[0]) + sum(probabilities * cotangents[1]); None leaves one out."""
    scores = paddle.to_tensor(scores.astype(dtype), stop_gradient=False)
    routing = route(scores, paddle.to_tensor(bias.astype(dtype)), top_k, record)
    pairs = zip((routing.weights, routing.probabilities), cotangents, strict=True)
    parts = [
        (value * paddle.to_tensor(c.astype(dtype))).sum() for value, c in pairs if c is not None
    ]
    sum(parts[1:], parts[0]).backward()
    return scores.grad.numpy()


def test_probabilities(check_operator, rng):
    check_operator(
        lambda x, weight: (
            route(linear_transposed(x, weight), paddle.zeros([3], x.dtype), 1).probabilities
        ),
        reference.router_probabilities,
        [rng.standard_normal((5, 4)), rng.standard_normal((3, 4))],
    )


def test_weights_and_their_gradient(check_operator, rng):
    ids = np.array([[0, 2], [3, 1], [1, 0]])
    check_operator(
        lambda p: routing_weights(p, ids),
        lambda p: reference.routing_weights(p, ids),
        [rng.random((3, 4)) + 0.1],
    )


def test_gradient_of_scores_on_the_plain_body(check_operator, rng):
    record = random_record(rng, 4, 5, 3)
    check_operator(
        lambda scores: route(scores, paddle.zeros([5], scores.dtype), 3, record).weights,
        lambda scores: reference.routing_weights(softmax(scores), record),
        [rng.standard_normal((4, 5))],
    )


@levels
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(0, 40),
    experts=st.integers(1, 70),
    size=st.floats(0.1, 20),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_kernel(level, tokens, experts, size, seed, data):
    top_k = data.draw(st.integers(1, min(experts, 9)))
    rng = np.random.default_rng(seed)
    scores, bias = tensors(
        size * rng.standard_normal((tokens, experts)), rng.choice([0, 0.01, 0.3], experts)
    )
    with running(level=level):
        weights, ids, probabilities = route(scores, bias, top_k)
    expected = softmax(scores.numpy())
    np.testing.assert_allclose(probabilities.numpy(), expected, rtol=1e-5, atol=1e-30)
    assert np.array_equal(ids, reference.select_experts(probabilities.numpy(), bias.numpy(), top_k))
    expected = reference.routing_weights(probabilities.numpy().astype(np.float64), ids)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6, atol=1e-38)


@levels
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 40),
    experts=st.integers(1, 40),
    used=st.sampled_from([(True, True), (True, False), (False, True)]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_gradient_of_the_kernel(level, tokens, experts, used, seed, data):
    top_k = data.draw(st.integers(1, min(experts, 9)))
    rng = np.random.default_rng(seed)
    scores, bias = rng.standard_normal((tokens, experts)), np.zeros(experts)
    record = random_record(rng, tokens, experts, top_k)
    shapes = (tokens, top_k), (tokens, experts)
    cotangents = [
        rng.standard_normal(shape) if use else None for shape, use in zip(shapes, used, strict=True)
    ]
    arguments = scores, bias, top_k, record, cotangents
    expected = gradient_of_scores(*arguments, "float64")
    with running(level=level):
        actual = gradient_of_scores(*arguments, "float32")
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6)


@levels
@pytest.mark.parametrize(("experts", "top_k"), [(1024, 64), (256, 8), (64, 64), (1, 1)])
def test_many_experts(level, experts, top_k, rng):
    scores, bias = tensors(3 * rng.standard_normal((37, experts)), 1e-3 * rng.random(experts))
    with running(level=level):
        weights, ids, probabilities = route(scores, bias, top_k)
        (weights**2).sum().backward()
    assert np.array_equal(ids, reference.select_experts(probabilities.numpy(), bias.numpy(), top_k))
    np.testing.assert_allclose(probabilities.numpy(), softmax(scores.numpy()), rtol=1e-5)
    np.testing.assert_allclose(scores.grad.numpy().sum(axis=1), 0, atol=1e-5)


@levels
@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 20),
    experts=st.integers(1, 20),
    distinct=st.integers(1, 3),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_ties_of_the_kernel_go_to_the_lower_id(level, tokens, experts, distinct, seed, data):
    rng = np.random.default_rng(seed)
    scores = rng.integers(distinct, size=(tokens, experts)).astype(np.float64)
    top_k = data.draw(st.integers(1, experts))
    with running(level=level):
        ids = route(*tensors(scores, np.zeros(experts)), top_k).ids
    assert np.array_equal(ids, reference.select_experts(scores, np.zeros(experts), top_k))


@levels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_replayed_rows_keep_their_ids_and_others_are_routed(level, dtype, rng):
    scores = paddle.to_tensor(rng.standard_normal((50, 8)).astype(dtype))
    bias = paddle.to_tensor(rng.random(8).astype(dtype))
    record = random_record(rng, 50, 8, 3)
    record[::3] = -1
    with running(level=level):
        live = route(scores, bias, 3)
        replayed = route(scores, bias, 3, record)
    assert np.array_equal(replayed.ids[::3], live.ids[::3])
    recorded = np.arange(50) % 3 > 0
    assert np.array_equal(replayed.ids[recorded], record[recorded])
    assert same_bits(replayed.probabilities, live.probabilities)
    expected = reference.routing_weights(live.probabilities.numpy(), replayed.ids)
    np.testing.assert_allclose(replayed.weights.numpy(), expected, rtol=1e-6)


@levels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_record_gives_the_bits_of_the_routing_it_came_from_in_any_order(level, dtype, rng):
    scores = paddle.to_tensor(rng.standard_normal((200, 16)).astype(dtype))
    bias = paddle.zeros([16], dtype)
    order = rng.permutation(6)
    with running(level=level):
        live = route(scores, bias, 6)
        replayed = route(scores, bias, 6, live.ids[:, order])
    assert np.array_equal(replayed.weights.numpy(), live.weights.numpy()[:, order])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("row", "found"),
    [([0, 4], "[0, 4]"), ([2, 2], "[2, 2]"), ([-1, 1], "[-1, 1]"), ([-2, -2], "[-2, -2]")],
)
def test_a_bad_record_is_refused_by_token(row, found, dtype, rng):
    scores = paddle.to_tensor(rng.standard_normal((3, 4)).astype(dtype))
    record = np.array([[0, 1], row, [-1, -1]])
    with pytest.raises(InputError, match=f"token 1 has experts .{found[1:-1]}"):
        route(scores, paddle.zeros([4], dtype), 2, record)


@pytest.mark.parametrize("shape", [(0, 2), (2, 2), (2, 3)])
def test_a_record_of_another_length_is_refused(shape):
    with pytest.raises(InputError, match=r"shape \(., .\), expected .* \(3, 2\)"):
        route(paddle.zeros([3, 4]), paddle.zeros([4]), 2, np.zeros(shape, np.int32))


@levels
@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(2, 300),
    experts=st.integers(1, 33),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_bits_of_a_token_do_not_depend_on_its_batch_or_threads(level, tokens, experts, seed, data):
    rng = np.random.default_rng(seed)
    top_k = data.draw(st.integers(1, min(experts, 5)))
    scores, bias = rng.standard_normal((tokens, experts)).astype(np.float32), np.zeros(experts)
    rows = rng.permutation(tokens)[: data.draw(st.integers(1, tokens))]
    with running(level=level, threads=1):
        whole = route(*tensors(scores, bias), top_k)
    with running(level=level, threads=3):
        part = route(*tensors(scores[rows], bias), top_k)
    assert np.array_equal(part.ids, whole.ids[rows])
    assert part.weights.numpy().tobytes() == whole.weights.numpy()[rows].tobytes()
    assert part.probabilities.numpy().tobytes() == whole.probabilities.numpy()[rows].tobytes()


@levels
def test_gradient_bits_do_not_depend_on_threads(level, rng):
    arguments = (
        rng.standard_normal((1000, 16)), np.zeros(16), 2, None,
        [rng.standard_normal((1000, 2)), rng.standard_normal((1000, 16))],
    )  # fmt: skip
    results = []
    for threads in (1, 4):
        with running(level=level, threads=threads):
            results.append(gradient_of_scores(*arguments, "float32").tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_nobody_differentiates_are_freed(dtype):
    """Scoring text with gradients switched on must not fill the memory."""
    scores = paddle.ones([3, 4], dtype)
    scores.stop_gradient = False
    routing = route(scores, paddle.zeros([4], dtype), 2)
    watched = [weakref.ref(routing.weights), weakref.ref(routing.probabilities)]
    del routing
    assert [ref() for ref in watched] == [None, None]


@levels
def test_nan_stays_in_its_token_and_ids_stay_distinct(level, rng):
    scores, bias = rng.standard_normal((40, 6)), np.zeros(6)
    scores[7, 2], scores[20, :] = np.nan, np.inf
    with running(level=level):
        weights, ids, probabilities = route(*tensors(scores, bias), 4)
    bad = np.isin(np.arange(40), [7, 20])
    for values in (weights.numpy(), probabilities.numpy()):
        assert np.array_equal(np.isnan(values).all(axis=1), bad)
        assert np.array_equal(np.isnan(values).any(axis=1), bad)
    assert (np.diff(np.sort(ids, axis=1)) > 0).all()
    assert ids.min() >= 0 and ids.max() < 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_excluded_experts_come_last(dtype):
    """An infinitely negative bias or score; more are asked for than are left."""
    inf = float("inf")
    scores = paddle.to_tensor([[1.0, -inf, 3.0, 2.0]], dtype=dtype)
    routing = route(scores, paddle.to_tensor([0.0, 0.0, -inf, -inf], dtype=dtype), 4)
    assert routing.ids.tolist() == [[0, 1, 2, 3]]
    assert routing.probabilities.numpy()[0, 1] < 1e-20
    assert np.isfinite(routing.weights.numpy()).all()


def test_a_single_expert_has_weight_one_and_no_gradient(rng):
    probabilities = paddle.to_tensor(rng.random((3, 4)), stop_gradient=False)
    weights = routing_weights(probabilities, np.array([[0], [3], [1]]))
    assert (weights.numpy() == 1).all()
    (weights * 5).sum().backward()
    np.testing.assert_allclose(probabilities.grad.numpy(), 0, atol=1e-12)


def test_vanishing_probabilities_are_divided_by_the_floor():
    probabilities = paddle.to_tensor([[1e-14, 1e-14, 1.0]], dtype="float64", stop_gradient=False)
    weights = routing_weights(probabilities, np.array([[0, 1]]))
    np.testing.assert_allclose(weights.numpy(), [[1e-2, 1e-2]])
    weights[0, 0].backward()
    np.testing.assert_allclose(probabilities.grad.numpy(), [[1e12, 0, 0]])


@levels
def test_vanishing_probabilities_of_the_kernel(level):
    """Chosen experts of probability e^-32, about 1e-14."""
    scores, bias = np.array([[-32.0, -32.5, 0.0]]), np.zeros(3)
    arguments = scores, bias, 2, np.array([[0, 1]]), [np.array([[1.0, -2.0]]), None]
    with running(level=level):
        weights = route(*tensors(scores, bias), 2, np.array([[0, 1]])).weights
        gradient = gradient_of_scores(*arguments, "float32")
    np.testing.assert_allclose(weights.numpy(), np.exp(scores[:, :2]) / 1e-12, rtol=1e-5)
    np.testing.assert_allclose(gradient, gradient_of_scores(*arguments, "float64"), rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 9),
    experts=st.integers(1, 9),
    levels=st.integers(1, 4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_selection_with_ties(tokens, experts, levels, seed, data):
    """Few distinct scores make many ties, which the lower id must win."""
    rng = np.random.default_rng(seed)
    probabilities = rng.integers(levels, size=(tokens, experts)) / 8
    bias = rng.integers(levels, size=experts) / 8
    top_k = data.draw(st.integers(1, experts))
    ids = select_experts(probabilities, bias, top_k)
    assert np.array_equal(ids, reference.select_experts(probabilities, bias, top_k))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bias_changes_the_choice_but_not_the_weights(dtype):
    scores = paddle.to_tensor(np.log([[0.5, 0.3, 0.2]]).astype(dtype))
    weights, ids, _ = route(scores, paddle.to_tensor([0, 0, 0.2], dtype=dtype), 2)
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_allclose(weights.numpy(), [[0.5 / 0.7, 0.2 / 0.7]], rtol=1e-6)


def test_selection_leaves_the_probabilities_alone():
    probabilities = np.array([[0.5, 0.3, 0.2]], np.float32)
    select_experts(probabilities, np.zeros(3, np.float32), 2)
    assert probabilities.tolist() == [[np.float32(0.5), np.float32(0.3), np.float32(0.2)]]
