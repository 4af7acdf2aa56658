import numpy as np
import paddle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library
from paddle_ernie.ops import sampling as module
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Numerics
from paddle_ernie.ops.sampling import (
    NO_TOKEN,
    RowParams,
    nucleus,
    random_bits,
    row_logprobs,
    sample_rows,
    top_logprobs,
    weights_of,
)
from paddle_ernie.ops.token_logprobs import log_softmax_rows, logprobs_of_logits, token_logprobs
from tests.ops.kernels import running

levels = pytest.mark.parametrize("level", range(len(library.ISA_NAMES)), ids=library.ISA_NAMES)
PLAIN = RowParams(1.0, 1.0, 0.0, 0.0, 0, 0, 0)
GREEDY = PLAIN._replace(temperature=0.0)

# Weights below 2^-31 are left out, the others are whole multiples of 2^-30: what a share of the
# probability can differ by from one in float64.
SHARE = 1e-4


# An independent reference: probabilities in float64, sorted.


def reference_order(logits: np.ndarray) -> np.ndarray:
    return np.array(sorted(range(len(logits)), key=lambda i: (-logits[i], i)))


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits.astype(np.float64) / np.float64(np.float32(temperature))
    p = np.exp(scaled - scaled.max())
    return p / p.sum()


def reference_kept(logits: np.ndarray, row: RowParams) -> tuple[np.ndarray, bool]:
    """(ids by ascending id, whether rounding cannot change them)."""
    p = softmax(logits, row.temperature)
    order = reference_order(logits)[: row.top_k or None]
    min_p, top_p = float(np.float32(row.min_p)), float(np.float32(row.top_p))
    clear = (abs(p / p.max() - min_p) > 1e-6).all() or min_p == 0
    order = order[p[order] >= min_p * p.max()]
    if top_p < 1:
        cumulative = np.cumsum(p[order]) / p[order].sum()
        clear &= (abs(cumulative - top_p) > SHARE).all()
        order = order[: np.count_nonzero(cumulative < top_p) + 1]
    return np.sort(order), bool(clear)


def reference_draw(logits: np.ndarray, row: RowParams) -> tuple[int, bool]:
    """(id, whether rounding cannot change it)."""
    if row.temperature == 0:
        return int(reference_order(logits)[0]), True
    ids, clear = reference_kept(logits, row)
    p = softmax(logits, row.temperature)[ids]
    edges = np.cumsum(p) / p.sum()
    u = random_bits(row.seed, row.position) / 2**64
    at = int(np.searchsorted(edges, u, side="right"))
    return int(ids[min(at, len(ids) - 1)]), clear and bool((abs(edges - u) > SHARE).all())


@st.composite
def cases(draw) -> tuple[np.ndarray, list[RowParams], int]:
    """(logits [R, V], parameters, ids that may be drawn)."""
    width = draw(st.sampled_from([1, 2, 5, 63, 64, 65, 130, 512, 513, 1100]))
    count = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((count, width)) * draw(st.sampled_from([1e-3, 1, 3, 30]))
    logits = logits.astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits)  # equal ones
    if draw(st.booleans()):
        logits[rng.random(logits.shape) < 0.5] = -np.inf
    rows = [
        RowParams(
            draw(st.sampled_from([0.0, 0.3, 1.0, 2.0, 50.0])),
            draw(st.sampled_from([1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.999])),
            draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])),
            0.0,
            draw(st.sampled_from([0, 0, 1, 2, 5, 50, width, width + 3])),
            draw(st.integers(-(2**63), 2**64 - 1)),
            draw(st.integers(0, 2**40)),
        )
        for _ in range(count)
    ]
    return logits, rows, draw(st.integers(1, width))


# Values.


@settings(max_examples=150, deadline=None)
@given(cases())
def test_draws_are_those_of_the_reference(case):
    logits, rows, num_ids = case
    found, _ = sample_rows(logits, rows, num_ids)
    for token, z, row in zip(found, logits[:, :num_ids], rows, strict=True):
        if np.isneginf(z).all():
            assert token == NO_TOKEN
            continue
        expected, clear = reference_draw(z, row)
        assert token == expected or not clear


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_body_gives_the_same_ids(case):
    """Each instruction set, and the plain body: not only close, equal."""
    logits, rows, num_ids = case
    temperatures = np.array([row.temperature or 1.0 for row in rows], np.float32)
    top_ps = np.array([row.top_p for row in rows], np.float32)
    count = min(20, logits.shape[1])
    ids, _ = module._sample_plain(logits, rows, num_ids)
    masked = module._nucleus_plain(logits, temperatures, top_ps)
    best, values = module._top_plain(logits, temperatures, count)
    for isa in library.ISA_NAMES[: library.ISA_NAMES.index(library.isa()) + 1]:
        with library.using(isa=isa):
            np.testing.assert_array_equal(sample_rows(logits, rows, num_ids)[0], ids)
            np.testing.assert_array_equal(nucleus(logits, temperatures, top_ps), masked)
            found, logprobs = top_logprobs(logits, temperatures, count)
        np.testing.assert_array_equal(found, best)
        np.testing.assert_allclose(logprobs, values, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 3))
def test_a_row_does_not_see_other_rows_or_threads(case, threads):
    logits, rows, num_ids = case
    with running(threads=threads):
        together, _ = sample_rows(logits, rows, num_ids)
    alone = [sample_rows(z[None], [row], num_ids)[0] for z, row in zip(logits, rows, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_weights_are_those_of_float64(rng, temperature):
    logits = (rng.standard_normal(5000) * 4).astype(np.float32)
    exact = np.exp((logits.astype(np.float64) - logits.max()) / np.float32(temperature)) * 2**30
    weights = weights_of(logits, temperature)
    assert weights.max() == 2**30
    np.testing.assert_allclose(weights, exact, rtol=3e-6, atol=0.5001)


def test_the_generator_is_philox():
    """Known answer of Random123, Philox4x32-10 with counter and key 0."""
    assert random_bits(0, 0) == 0xE169C58D_6627E8D5
    assert len({random_bits(seed, at) for seed in range(50) for at in range(50)}) == 2500
    assert random_bits(-1, 3) == random_bits(2**64 - 1, 3) != random_bits(2**32 - 1, 3)


# Distributions. Seeds are fixed: these tests either always pass or never.


def chi_square_excess(counts: np.ndarray, p: np.ndarray) -> float:
    """By how many standard deviations the statistic is above its mean."""
    expected = p * counts.sum()
    assert expected.min() > 5, "too few draws for the test"
    freedom = len(p) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "row",
    [
        PLAIN,
        PLAIN._replace(temperature=0.6),
        PLAIN._replace(temperature=1.7, top_p=0.8),
        PLAIN._replace(top_k=7),
        PLAIN._replace(min_p=0.1),
        PLAIN._replace(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
    ],
    ids=["plain", "cool", "top_p", "top_k", "min_p", "all"],
)
@pytest.mark.parametrize("by", ["position", "seed"])
def test_draws_follow_the_distribution(rng, row, by):
    logits, draws = rng.standard_normal(40).astype(np.float32), 40_000
    rows = [row._replace(seed=11, position=3)._replace(**{by: i}) for i in range(draws)]
    tokens, _ = sample_rows(np.tile(logits, (draws, 1)), rows)
    ids, _ = reference_kept(logits, row)
    assert set(tokens) == set(ids)
    p = softmax(logits, row.temperature)[ids]
    assert chi_square_excess(np.bincount(tokens, minlength=40)[ids], p / p.sum()) < 4


def test_draws_that_follow_each_other_are_independent():
    draws = 60_000
    rows = [PLAIN._replace(seed=5, position=i) for i in range(draws)]
    tokens, _ = sample_rows(np.zeros((draws, 8), np.float32), rows)
    for step in (1, 2, 7):
        pairs = np.bincount(tokens[:-step] * 8 + tokens[step:], minlength=64)
        assert chi_square_excess(pairs, np.full(64, 1 / 64)) < 4


# Log-probabilities.


@levels
def test_log_probabilities_have_the_bits_of_the_scoring_function(rng, level):
    logits = (rng.standard_normal((6, 300)) * 3).astype(np.float32)
    temperatures = rng.uniform(0.3, 2, 6).astype(np.float32)
    rows = [
        PLAIN._replace(logprob_temperature=float(t), position=i) for i, t in enumerate(temperatures)
    ]
    with running(level=level):
        ids, logprobs = sample_rows(logits, rows, 250)
        expected = logprobs_of_logits(paddle.to_tensor(logits), ids, temperatures)[0].numpy()
        apart = row_logprobs(logits, ids, temperatures)
        best, values = top_logprobs(logits, temperatures, 12)
        log_p = log_softmax_rows(paddle.to_tensor(logits), temperatures).numpy()
    assert logprobs.tobytes() == expected.tobytes() == apart.tobytes()
    assert values.tobytes() == np.take_along_axis(log_p, best, axis=1).tobytes()


@levels
@pytest.mark.parametrize("recipe", [FP32, BF16, FP8], ids=["fp32", "bf16", "fp8"])
def test_log_probabilities_are_the_trainers(rng, level, recipe):
    """From hidden states through a trainer's path, and from logits of one row at a time."""
    hidden, weight = (
        paddle.to_tensor(rng.standard_normal(shape).astype(np.float32))
        for shape in ((9, 70), (203, 70))
    )
    numerics = Numerics(recipe)
    with running(level=level), paddle.no_grad():
        tokens, logprobs = [], []
        for t in range(9):
            logits = linear_transposed(hidden[t : t + 1], weight, numerics.high).numpy()
            row = PLAIN._replace(temperature=0.6, logprob_temperature=0.6, seed=1, position=t)
            ids, values = sample_rows(logits, [row])
            tokens.append(ids[0])
            logprobs.append(values[0])
        trained, _ = token_logprobs(hidden, weight, np.array(tokens), 0.6, numerics)
    assert np.array(logprobs).tobytes() == trained.numpy().tobytes()


def test_no_log_probability_unless_asked_for(rng):
    logits = rng.standard_normal((2, 30)).astype(np.float32)
    rows = [PLAIN, PLAIN._replace(logprob_temperature=1.0)]
    assert (sample_rows(logits, rows)[1] != 0).tolist() == [False, True]
    assert row_logprobs(logits, np.array([NO_TOKEN, 3]), np.ones(2, np.float32))[0] == 0


def test_the_likeliest_tokens_come_best_first(rng):
    logits = np.round(rng.standard_normal((3, 500)) * 2).astype(np.float32)  # many equal ones
    ids, logprobs = top_logprobs(logits, np.full(3, 0.5, np.float32), 100)
    for r, row in enumerate(logits):
        np.testing.assert_array_equal(ids[r], reference_order(row)[:100])
        np.testing.assert_allclose(logprobs[r], np.log(softmax(row, 0.5)[ids[r]]), rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_nucleus_is_that_of_the_reference(case):
    logits, rows, _ = case
    rows = [row._replace(temperature=row.temperature or 1, min_p=0, top_k=0) for row in rows]
    masked = nucleus(logits, *np.array([row[:2] for row in rows], np.float32).T)
    for z, found, row in zip(logits, masked, rows, strict=True):
        inside = ~np.isneginf(found)
        np.testing.assert_array_equal(found[inside], z[inside])
        if np.isneginf(z).all():
            assert not inside.any()
            continue
        expected, clear = reference_kept(z, row)
        finite = expected[~np.isneginf(z[expected])]
        assert not clear or np.flatnonzero(inside).tolist() == finite.tolist()


# Edges.


@pytest.mark.parametrize("width", [1, 64, 65, 700])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@levels
def test_a_row_that_is_not_finite_has_no_token(rng, level, width, value):
    for at in {0, width // 2, width - 1}:
        logits = rng.standard_normal((3, width)).astype(np.float32)
        logits[1, at] = value
        rows = [GREEDY, PLAIN._replace(logprob_temperature=1.0), PLAIN._replace(top_p=0.5)]
        for order in (rows, rows[1:] + rows[:1], rows[2:] + rows[:2]):
            with running(level=level):
                ids, logprobs = sample_rows(logits, order)
                best, values = top_logprobs(logits, np.ones(3, np.float32), 1)
                masked = nucleus(logits, np.ones(3), np.full(3, 0.5))
            assert ids[1] == NO_TOKEN
            assert logprobs[1] == 0
            assert (ids[[0, 2]] >= 0).all()
            assert best[1] == 0
            assert np.isnan(values).tolist() == [[False], [True], [False]]
            assert np.isneginf(masked[1]).all()


def test_values_beyond_the_ids_do_not_count():
    logits = np.array([[0.0, 1.0, np.nan, 9.0]], np.float32)
    assert sample_rows(logits, [GREEDY], 2)[0] == [1]
    assert sample_rows(np.full((1, 4), -np.inf, np.float32), [PLAIN])[0] == [NO_TOKEN]


@levels
def test_greedy_takes_the_first_of_equals(level):
    logits = np.zeros((3, 400), np.float32)
    logits[1, [130, 131, 399]] = 2
    logits[2] = -np.inf
    logits[2, [250, 399]] = -3
    with running(level=level):
        assert sample_rows(logits, [GREEDY] * 3)[0].tolist() == [0, 130, 250]
        assert sample_rows(logits, [PLAIN._replace(top_k=1)] * 3)[0].tolist() == [0, 130, 250]
        assert sample_rows(logits, [PLAIN._replace(top_p=0)] * 3)[0].tolist() == [0, 130, 250]


@pytest.mark.parametrize("temperature", [1e-30, 1e-44])
def test_a_tiny_temperature_is_greedy(rng, temperature):
    logits = rng.standard_normal((1, 100)).astype(np.float32)
    row = PLAIN._replace(temperature=temperature, top_p=0.9)
    for body in (sample_rows, module._sample_plain):
        assert body(logits, [row], 100)[0] == logits.argmax()


@example(width=49_152, equal=True)
@settings(max_examples=5, deadline=None)
@given(width=st.sampled_from([8192, 50_000]), equal=st.booleans())
def test_large_vocabularies(width, equal):
    rng = np.random.default_rng(width)
    logits = rng.standard_normal((2, width)).astype(np.float32) * (not equal)
    for row in (PLAIN, PLAIN._replace(top_p=0.9), PLAIN._replace(top_k=3000, top_p=0.7)):
        rows = [row, row._replace(position=1)]
        np.testing.assert_array_equal(
            sample_rows(logits, rows)[0], module._sample_plain(logits, rows, width)[0]
        )


def test_no_rows():
    ids, logprobs = sample_rows(np.empty((0, 5), np.float32), [])
    assert ids.shape == logprobs.shape == (0,)


@pytest.mark.parametrize("num_ids", [-1, 6])
def test_more_ids_than_columns_are_refused(num_ids):
    with pytest.raises(AssertionError, match=f"num_ids is {num_ids}; expected 1 to 5"):
        sample_rows(np.zeros((1, 5), np.float32), [PLAIN], num_ids)


@pytest.mark.parametrize("count", [0, 6])
def test_more_likeliest_tokens_than_columns_are_refused(count):
    with pytest.raises(OSError, match=f"count is {count}; expected 1 to 5"):
        top_logprobs(np.zeros((1, 5), np.float32), np.ones(1, np.float32), count)
