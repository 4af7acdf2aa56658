import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops.permute import dispatch, permute, unpermute
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, value_and_gradients

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])
token_groups = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4)


def random_ids(rng, tokens: int, experts: int, top_k: int) -> np.ndarray:
    return np.array([rng.permutation(experts)[:top_k] for _ in range(tokens)], np.int64).reshape(
        tokens, top_k
    )


def test_example_of_the_docstring():
    to = dispatch([np.array([[2, 0], [0, 1]])], 3)
    assert to.tokens.tolist() == [0, 1, 1, 0]
    assert to.sources.tolist() == [1, 2, 3, 0]
    assert to.slots.tolist() == [0, 3, 1, 2]
    assert to.starts.tolist() == [0, 2, 4]
    assert to.counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=30, deadline=None)
@given(groups=token_groups, experts=st.integers(4, 20), seed=st.integers(0, 1000))
def test_slots_are_sorted_by_expert_and_lead_back(compiled, groups, experts, seed):
    rng = np.random.default_rng(seed)
    ids = [random_ids(rng, tokens, experts, top_k) for tokens, top_k in groups]
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(library, "loaded", lambda: False)
        to = dispatch(ids, experts)
    expert_of_slot = np.concatenate([group.reshape(-1) for group in ids])[to.sources]
    assert (np.diff(expert_of_slot) >= 0).all()
    same_expert = np.diff(expert_of_slot) == 0
    assert (np.diff(to.tokens)[same_expert] > 0).all()
    assert np.array_equal(np.bincount(expert_of_slot, minlength=experts), to.counts)
    assert to.num_tokens == sum(tokens for tokens, _ in groups)
    experts_of_token = [row for group in ids for row in group]
    for token, chosen in enumerate(experts_of_token):
        slots = to.slots[to.starts[token] : to.starts[token + 1]]
        assert np.array_equal(expert_of_slot[slots], np.sort(chosen))
        assert (to.tokens[slots] == token).all()


def test_an_expert_that_does_not_exist_is_refused():
    for expert in (-1, 3):
        with pytest.raises(OSError, match="assignment 1 is to no expert below 3"):
            dispatch([np.array([[0, expert]])], 3)


def experts_of_slots(ids: list[np.ndarray], to) -> np.ndarray:
    return np.concatenate([group.reshape(-1) for group in ids])[to.sources]


def _moe(x, weights, to, ids, outputs, *bases):
    """Experts that scale each token by a row of their own: enough to see every slot."""
    factors = paddle.to_tensor(outputs.astype(x.numpy().dtype)[experts_of_slots(ids, to)])
    return unpermute(permute(x, to) * factors, weights, to, *bases)


def test_values_and_gradients_with_unequal_top_k_and_bases(check_operator, rng):
    ids = [random_ids(rng, 3, 4, 2), random_ids(rng, 2, 4, 1)]
    to = dispatch(ids, 4)
    outputs = rng.standard_normal((4, 5))

    def expected(x, weights, first, second):
        every = x[:, None] * outputs
        routed = [
            reference.combine_experts(every[:3], ids[0], weights[:6].reshape(3, 2)),
            reference.combine_experts(every[3:], ids[1], weights[6:].reshape(2, 1)),
        ]
        return np.concatenate(routed) + first + second

    check_operator(
        lambda x, weights, *bases: _moe(x, weights, to, ids, outputs, *bases),
        expected,
        [rng.standard_normal(shape) for shape in ((5, 5), 8, (5, 5), (5, 5))],
    )


@levels
@settings(max_examples=25, deadline=None)
@given(
    groups=token_groups,
    experts=st.integers(4, 20),
    width=st.sampled_from([1, 3, 16, 31, 64, 128, 133, 200]),
    num_bases=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_kernels_equal_the_plain_body(level, groups, experts, width, num_bases, seed):
    rng = np.random.default_rng(seed)
    ids = [random_ids(rng, tokens, experts, top_k) for tokens, top_k in groups]
    to = dispatch(ids, experts)
    T, N = to.num_tokens, len(to.tokens)
    outputs = rng.standard_normal((experts, width)).astype(np.float32)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in [(T, width), N]]
    arrays += [rng.standard_normal((T, width)).astype(np.float32) for _ in range(num_bases)]
    cotangents = [rng.standard_normal((T, width)).astype(np.float32)]

    def operator(x, weights, *bases):
        return _moe(x, weights, to, ids, outputs, *bases)

    expected = value_and_gradients(operator, arrays, cotangents, "float64")
    with running(level=level):
        actual = value_and_gradients(operator, arrays, cotangents, "float32")
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.sqrt(width))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tokens", [0, 1, 300])
def test_one_expert_takes_all(dtype, tokens, rng):
    to = dispatch([np.full((tokens, 1), 2, np.int64)], 4)
    assert to.counts.tolist() == [0, 0, tokens, 0]
    x = paddle.to_tensor(rng.standard_normal((tokens, 24)).astype(dtype))
    slots = permute(x, to)
    assert np.array_equal(slots.numpy(), x.numpy())
    back = unpermute(slots, paddle.full([tokens], 0.5, dtype), to, x)
    assert np.array_equal(back.numpy(), 1.5 * x.numpy())


@levels
def test_sum_does_not_depend_on_the_ranking_of_the_experts(level, rng):
    """Three summands in another order would differ in the last bits."""
    ids = random_ids(rng, 50, 8, 3)
    weights = rng.random(ids.shape).astype(np.float32)
    x = paddle.to_tensor(rng.standard_normal((50, 16)).astype(np.float32))
    outputs = rng.standard_normal((8, 16)).astype(np.float32)
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        to = dispatch([ids[:, order]], 8)
        flat = paddle.to_tensor(np.ascontiguousarray(weights[:, order]).reshape(-1))
        with running(level=level):
            results.append(_moe(x, flat, to, [ids[:, order]], outputs).numpy())
    assert np.array_equal(*results)


@levels
@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 300),
    width=st.sampled_from([5, 16, 130]),
    top_k=st.integers(1, 4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_bits_of_a_token_do_not_depend_on_its_batch_or_threads(
    level, tokens, width, top_k, seed, data
):
    rng = np.random.default_rng(seed)
    ids, weights = random_ids(rng, tokens, 8, top_k), rng.random((tokens, top_k))
    x, base = rng.standard_normal((2, tokens, width))
    outputs = rng.standard_normal((8, width))
    rows = rng.permutation(tokens)[: data.draw(st.integers(1, tokens))]

    def run(at, threads: int) -> np.ndarray:
        with running(level=level, threads=threads):
            x_TD, base_TD, weights_N = (
                paddle.to_tensor(array[at].astype(np.float32)) for array in (x, base, weights)
            )
            flat_N = weights_N.reshape([-1])
            return _moe(x_TD, flat_N, dispatch([ids[at]], 8), [ids[at]], outputs, base_TD).numpy()

    assert run(rows, 3).tobytes() == run(np.arange(tokens), 1)[rows].tobytes()


@levels
def test_gradient_bits_do_not_depend_on_threads(level, rng):
    ids = random_ids(rng, 700, 8, 3)
    to, outputs = dispatch([ids], 8), rng.standard_normal((8, 40))
    arrays = [rng.standard_normal((700, 40)), rng.random(2100), rng.standard_normal((700, 40))]
    results = []
    for threads in (1, 4):
        with running(level=level, threads=threads):
            results.append(
                value_and_gradients(
                    lambda x, w, base: _moe(x, w, to, [ids], outputs, base),
                    arrays,
                    [np.cos(arrays[0])],
                    "float32",
                )
            )
    for one, four in zip(*results, strict=True):
        assert one.tobytes() == four.tobytes()


@levels
def test_nan_reaches_its_token_only_even_with_weight_zero(level, rng):
    ids = random_ids(rng, 20, 4, 2)
    to = dispatch([ids], 4)
    y = rng.standard_normal((40, 33)).astype(np.float32)
    y[to.slots[to.starts[7]]] = np.nan
    with running(level=level):
        out = unpermute(paddle.to_tensor(y), paddle.zeros([40]), to).numpy()
    assert np.array_equal(np.isnan(out).all(axis=1), np.arange(20) == 7)
    assert not np.isnan(np.delete(out, 7, axis=0)).any()


def test_gradients_of_only_some_inputs(rng):
    to = dispatch([random_ids(rng, 6, 4, 2)], 4)
    for wanting in range(4):
        inputs = [paddle.ones([12, 3]), paddle.ones([12]), paddle.ones([6, 3]), paddle.ones([6, 3])]
        inputs[wanting].stop_gradient = False
        unpermute(inputs[0], inputs[1], to, *inputs[2:]).sum().backward()
        assert [x.grad is not None for x in inputs] == [i == wanting for i in range(4)]
