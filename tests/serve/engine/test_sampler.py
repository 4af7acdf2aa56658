import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops.token_logprobs import log_softmax_rows, logprobs_of_logits
from paddle_ernie.serve.engine.sampler import LOWEST_LOGPROB, NO_TOKEN, Sampler, SamplerState
from paddle_ernie.serve.types import SamplingParams

VOCAB, WIDTH = 90, 96  # the tokenizer's ids, and the model's padded to a round number
PROMPT = [3, 5, 5, 7]


def state(**values) -> SamplerState:
    return SamplerState(SamplingParams(**values), PROMPT, VOCAB, frozenset({2}))


def logits_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    return (rng.standard_normal((rows, WIDTH)) * 3).astype(np.float32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.5, 0.9]),
    top_k=st.sampled_from([0, 1, 10]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    min_tokens=st.sampled_from([0, 3]),
    seed=st.integers(0, 2**63),
    stop_token_ids=st.sampled_from([frozenset(), frozenset({4, 9})]),
    bad_words_token_ids=st.sampled_from([(), ((8,), (1, 6), (7, 11))]),
    logit_bias=st.sampled_from([{}, {12: 5.0, 3: -100.0}]),
    logprobs=st.sampled_from([None, 0, 4]),
    temp_scaled_logprobs=st.booleans(),
    top_p_normalized_logprobs=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(params, min_size=1, max_size=5), st.integers(0, 2**32))
def test_a_sequence_does_not_see_the_batch(many, seed):
    """Tokens and log-probabilities of some steps, together and each alone, from the same logits."""
    rng, sampler = np.random.default_rng(seed), Sampler(VOCAB)
    together = [SamplerState(p, PROMPT, VOCAB, frozenset({2})) for p in many]
    alone = [SamplerState(p, PROMPT, VOCAB, frozenset({2})) for p in many]
    for _ in range(4):
        logits = logits_of(rng, len(many))
        expected = [
            sampler.sample(logits[i : i + 1].copy(), [alone[i]])[0] for i in range(len(many))
        ]
        assert sampler.sample(logits.copy(), together) == expected
        for i, (token, _) in enumerate(expected):
            together[i].append(token)
            alone[i].append(token)


@settings(max_examples=60, deadline=None)
@given(params, st.integers(0, 2**32))
def test_log_probabilities_are_the_trainers_of_the_models_own_logits(p, seed):
    """Penalties, biases and bans change what is drawn, not what is reported."""
    if p.top_p_normalized_logprobs or p.logprobs is None:
        return
    rng, sampler = np.random.default_rng(seed), Sampler(VOCAB)
    sequence = SamplerState(p, PROMPT, VOCAB, frozenset({2}))
    temperature = p.temperature if p.temp_scaled_logprobs and p.temperature > 1e-3 else 1.0
    for _ in range(3):
        logits = logits_of(rng, 1)
        own = paddle.to_tensor(logits)
        token, found = sampler.sample(logits, [sequence])[0]
        assert found.logprob == logprobs_of_logits(own, np.array([token]), temperature)[0].item()
        log_p = log_softmax_rows(own, temperature).numpy()[0]
        best = sorted(range(WIDTH), key=lambda i: (-own.numpy()[0, i], i))[: p.logprobs]
        assert found.top == tuple((i, log_p[i]) for i in best)
        sequence.append(token)


def test_token_i_depends_on_the_seed_and_i(rng):
    """What makes a sequence go on the same after it was preempted, on another server."""
    logits, sampler, tokens = logits_of(rng, 1), Sampler(VOCAB), []
    sequence = state(temperature=10, seed=9)
    for _ in range(8):
        tokens.append(sampler.sample(logits.copy(), [sequence])[0][0])
        sequence.append(tokens[-1])
    assert len(set(tokens)) > 5
    again = state(temperature=10, seed=9)
    for token in tokens[:5]:
        again.append(token)
    assert sampler.sample(logits.copy(), [again])[0][0] == tokens[5]
    others = [state(temperature=10, seed=seed) for seed in range(20)]
    drawn = sampler.sample(np.repeat(logits, 20, axis=0), others)
    assert len({token for token, _ in drawn}) > 10


def test_top_p_normalised_log_probabilities():
    """Of what is left after top-p, renormalised: by hand, and with the trainer's bits."""
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    logits = np.log(probabilities).astype(np.float32)[None]
    want = {"top_p": 0.7, "logprobs": 3, "top_p_normalized_logprobs": True}
    sequence = SamplerState(SamplingParams(**want), [0], 4)
    token, found = Sampler(4).sample(logits.copy(), [sequence])[0]
    exact = np.log([2 / 3, 1 / 3])
    assert found.logprob == pytest.approx(exact[token], abs=1e-6)
    assert [i for i, _ in found.top] == [0, 1, 2]
    assert [x for _, x in found.top[:2]] == pytest.approx(exact.tolist(), abs=1e-6)
    assert found.top[2][1] == LOWEST_LOGPROB
    logits[0, 2:] = -np.inf
    expected = logprobs_of_logits(paddle.to_tensor(logits), np.array([token]))[0].item()
    assert found.logprob == expected


def test_top_p_normalised_is_raw_where_all_is_kept(rng):
    logits = logits_of(rng, 1)
    plain = Sampler(VOCAB).sample(logits.copy(), [state(logprobs=2)])
    assert (
        Sampler(VOCAB).sample(logits, [state(logprobs=2, top_p_normalized_logprobs=True)]) == plain
    )


def test_a_token_outside_the_nucleus_has_the_lowest_log_probability(rng):
    logits = logits_of(rng, 1)
    worst = int(logits[0, :VOCAB].argmin())
    want = {"logit_bias": {worst: 100.0}, "top_p": 0.5, "top_p_normalized_logprobs": True}
    token, found = Sampler(VOCAB).sample(logits, [state(**want, logprobs=0)])[0]
    assert (token, found.logprob) == (worst, LOWEST_LOGPROB)


def test_ids_beyond_the_tokenizer_are_never_produced(rng):
    logits = logits_of(rng, 3)
    logits[:, VOCAB:] = 50
    states = [state(temperature=0), state(), state(top_p=0.5, logprobs=1)]
    result = Sampler(VOCAB).sample(logits, states)
    assert all(token < VOCAB for token, _ in result)
    assert result[2][1].logprob < -40, "log-probabilities are over all that the model can say"


def test_a_row_without_a_token_leaves_the_others(rng):
    logits = logits_of(rng, 4)
    logits[1, 5] = np.nan
    logits[2] = -np.inf
    states = [state(temperature=0), state(), state(logprobs=1), state(logprobs=0)]
    found = Sampler(VOCAB).sample(logits.copy(), states)
    assert [token == NO_TOKEN for token, _ in found] == [False, True, True, False]
    assert found[0][0] == logits[0, :VOCAB].argmax()


def test_no_rows():
    assert Sampler(VOCAB).sample(np.empty((0, WIDTH), np.float32), []) == []


def test_prompt_log_probabilities(rng):
    logits = logits_of(rng, 3)
    states = [
        state(prompt_logprobs=0),
        state(prompt_logprobs=2),
        state(prompt_logprobs=2, temperature=0.5, temp_scaled_logprobs=True, logit_bias={1: 9.0}),
    ]
    found = Sampler(VOCAB).prompt_logprobs(logits, [4, 5, 6], states)
    tensor, temperatures = paddle.to_tensor(logits), np.array([1, 1, 0.5], np.float32)
    expected = logprobs_of_logits(tensor, np.array([4, 5, 6]), temperatures)[0].numpy()
    assert [x.logprob for x in found] == expected.tolist()
    assert [len(x.top) for x in found] == [0, 2, 2]
    log_p = log_softmax_rows(tensor, temperatures).numpy()
    for r in (1, 2):
        assert [x for _, x in found[r].top] == sorted(log_p[r].tolist())[:-3:-1]
