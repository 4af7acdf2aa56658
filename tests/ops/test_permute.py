import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.permute import dispatch, permute, unpermute


def random_ids(rng, tokens: int, experts: int, top_k: int) -> np.ndarray:
    return np.array([rng.permutation(experts)[:top_k] for _ in range(tokens)], np.int64).reshape(
        tokens, top_k
    )


def test_example_of_the_docstring():
    to = dispatch([np.array([[2, 0], [0, 1]])], 3)
    assert to.tokens.tolist() == [0, 1, 1, 0]
    assert to.sources.tolist() == [1, 2, 3, 0]
    assert to.slots[0].tolist() == [[0, 3], [1, 2]]
    assert to.counts.tolist() == [2, 1, 1]


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4),
    experts=st.integers(4, 20),
    seed=st.integers(0, 1000),
)
def test_slots_are_sorted_by_expert_and_lead_back(groups, experts, seed):
    rng = np.random.default_rng(seed)
    ids = [random_ids(rng, tokens, experts, top_k) for tokens, top_k in groups]
    to = dispatch(ids, experts)
    expert_of_slot = np.concatenate([group.reshape(-1) for group in ids])[to.sources]
    assert (np.diff(expert_of_slot) >= 0).all()
    assert np.array_equal(np.bincount(expert_of_slot, minlength=experts), to.counts)
    first = 0
    for group, slots in zip(ids, to.slots, strict=True):
        assert np.array_equal(expert_of_slot[slots], np.sort(group, axis=1))
        tokens = np.arange(first, first + len(group))[:, None]
        assert (to.tokens[slots] == tokens).all()
        first += len(group)


def _moe(x, weights, to, ids, outputs):
    """Experts that scale each token by a matrix of their own: enough to see every slot."""
    slots = permute(x, to)
    experts = np.concatenate([group.reshape(-1) for group in ids])[to.sources]
    return unpermute(slots * paddle.to_tensor(outputs[experts]), weights, to)


def test_values_and_gradients_with_unequal_top_k(check_operator, rng):
    ids = [random_ids(rng, 3, 4, 2), random_ids(rng, 2, 4, 1)]
    to = dispatch(ids, 4)
    outputs = rng.standard_normal((4, 5))

    def expected(x, weights):
        every = x[:, None] * outputs
        return np.concatenate(
            [
                reference.combine_experts(every[:3], ids[0], weights[:6].reshape(3, 2)),
                reference.combine_experts(every[3:], ids[1], weights[6:].reshape(2, 1)),
            ]
        )

    check_operator(
        lambda x, weights: _moe(x, weights, to, ids, outputs.astype(x.numpy().dtype)),
        expected,
        [rng.standard_normal((5, 5)), rng.standard_normal(8)],
    )


def test_sum_does_not_depend_on_the_ranking_of_the_experts(rng):
    """Three summands in another order would differ in the last bits."""
    ids = random_ids(rng, 50, 8, 3)
    weights = rng.random(ids.shape).astype(np.float32)
    x = paddle.to_tensor(rng.standard_normal((50, 16)).astype(np.float32))
    outputs = rng.standard_normal((8, 16)).astype(np.float32)
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        to = dispatch([ids[:, order]], 8)
        flat = paddle.to_tensor(np.ascontiguousarray(weights[:, order]).reshape(-1))
        results.append(_moe(x, flat, to, [ids[:, order]], outputs).numpy())
    assert np.array_equal(*results)
