import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.router import router_probabilities, routing_weights, select_experts


def test_probabilities(check_operator, rng):
    check_operator(
        router_probabilities,
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


def test_bias_changes_the_choice_but_not_the_weights():
    probabilities = np.array([[0.5, 0.3, 0.2]], np.float32)
    ids = select_experts(probabilities, np.array([0, 0, 0.2], np.float32), 2)
    assert ids.tolist() == [[0, 2]]
    weights = routing_weights(paddle.to_tensor(probabilities), ids).numpy()
    np.testing.assert_allclose(weights, [[0.5 / 0.7, 0.2 / 0.7]], rtol=1e-6)


def test_selection_leaves_the_probabilities_alone():
    probabilities = np.array([[0.5, 0.3, 0.2]], np.float32)
    select_experts(probabilities, np.zeros(3, np.float32), 2)
    assert probabilities.tolist() == [[np.float32(0.5), np.float32(0.3), np.float32(0.2)]]
