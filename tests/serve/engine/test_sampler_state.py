import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.serve.engine.sampler_state import SamplerState, check_params
from paddle_ernie.serve.types import SamplingParams
from paddle_ernie.utils.errors import InputError

VOCAB = 20


def edited(logits, params: SamplingParams, prompt=(), output=(), eos=frozenset()) -> np.ndarray:
    """`logits` after the state's edits, with `output` generated so far."""
    state = SamplerState(params, prompt, VOCAB, eos)
    for token in output:
        state.append(token)
    result = np.asarray(logits, np.float32).copy()
    state.edit(result)
    assert state.edits or np.array_equal(result, np.asarray(logits, np.float32))
    return result


def penalised(logits, params, prompt, output) -> np.ndarray:
    """The definitions, one token after the other, in float64."""
    result = np.asarray(logits, np.float64).copy()
    for token in range(VOCAB):
        if token in prompt or token in output:
            factor = params.repetition_penalty
            result[token] *= 1 / factor if result[token] > 0 else factor
        count = list(output).count(token)
        result[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        result[token] += params.logit_bias.get(token, 0)
    return result


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=12),
    st.lists(st.integers(0, VOCAB - 1), max_size=12),
    st.sampled_from([-2.0, 0.0, 1.0]),
    st.sampled_from([-0.5, 0.0, 2.0]),
    st.sampled_from([0.5, 1.0, 1.5]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=3),
)
def test_penalties_and_biases(prompt, output, presence, frequency, repetition, bias):
    params = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition,
        logit_bias=bias,
    )  # fmt: skip
    logits = np.random.default_rng(0).standard_normal(VOCAB) * 3
    found = edited(logits, params, prompt, output)
    np.testing.assert_allclose(found, penalised(logits, params, prompt, output), atol=2e-5)


def test_edits_between_tokens_see_the_latest_counts():
    """Counts are kept between steps; a token that is new, and one that is known."""
    state = SamplerState(SamplingParams(frequency_penalty=1.0), [1], VOCAB)
    for token, expected in ((4, 1), (4, 2), (6, 2), (4, 3)):
        state.append(token)
        logits = np.zeros(VOCAB, np.float32)
        state.edit(logits)
        assert logits[4] == -expected
    assert logits.sum() == -4


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_excludes_stops_until_then(ignore_eos):
    params = SamplingParams(
        min_tokens=2, stop_token_ids=frozenset({3, VOCAB + 5}), ignore_eos=ignore_eos
    )
    for count in range(4):
        found = edited(np.zeros(VOCAB), params, [1], [7] * count, frozenset({9}))
        excluded = [] if count >= 2 else [3] if ignore_eos else [3, 9]
        assert np.flatnonzero(np.isneginf(found)).tolist() == excluded


def test_min_tokens_without_stops_changes_nothing():
    assert not SamplerState(SamplingParams(min_tokens=2), [1], VOCAB).edits


@pytest.mark.parametrize(
    ("prompt", "output", "excluded"),
    [
        ([], [], [8]),
        ([4], [], [5, 8]),
        ([4], [1], [8]),
        ([1], [4], [5, 8]),
        ([1, 2], [3], [4, 8]),
        ([2], [1, 2, 3], [4, 8]),
        ([2], [3, 4], [5, 8]),
        ([], [1, 2, 3, 1, 2], [8]),
    ],
)
def test_bad_words_are_never_completed(prompt, output, excluded):
    """Across the end of the prompt too."""
    words = ((8,), (4, 5), (1, 2, 3, 4))
    found = edited(np.zeros(VOCAB), SamplingParams(bad_words_token_ids=words), prompt, output)
    assert np.flatnonzero(np.isneginf(found)).tolist() == excluded


def test_a_ban_outweighs_a_bias():
    params = SamplingParams(bad_words_token_ids=((8,),), logit_bias={8: 100.0})
    assert np.isneginf(edited(np.zeros(VOCAB), params)[8])


def test_parameters_that_change_no_logits():
    params = SamplingParams(temperature=0.3, top_p=0.5, top_k=3, min_p=0.1, seed=4, logprobs=3)
    assert not SamplerState(params, [1], VOCAB, frozenset({2})).edits


def test_row_of_the_next_draw():
    params = SamplingParams(temperature=0.25, top_p=0.5, top_k=3, min_p=0.125, seed=4)
    state = SamplerState(params, [1], VOCAB)
    state.append(5)
    assert state.row(0.5) == (0.25, 0.5, 0.125, 0.5, 3, 4, 1)
    assert SamplerState(SamplingParams(temperature=1e-6), [1], VOCAB).row(0.0).temperature == 0


@pytest.mark.parametrize(
    ("temperature", "scaled", "expected"),
    [(0.5, True, 0.5), (0.5, False, 1.0), (0.0, True, 1.0), (1e-6, True, 1.0)],
)
def test_temperature_of_log_probabilities(temperature, scaled, expected):
    params = SamplingParams(temperature=temperature, temp_scaled_logprobs=scaled)
    assert SamplerState(params, [1], VOCAB).logprob_temperature == expected


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"min_tokens": -1}, "min_tokens is -1; expected 0 or more"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5; expected at most max_tokens"),
        ({"temperature": -0.5}, "temperature is -0.5; expected 0"),
        ({"temperature": NAN}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 1.5}, "top_p is 1.5; expected 0 to 1"),
        ({"top_p": NAN}, "top_p is nan"),
        ({"top_k": -1}, "top_k is -1; expected 0"),
        ({"min_p": -0.1}, "min_p is -0.1; expected 0 to 1"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; expected -2 to 2"),
        ({"frequency_penalty": NAN}, "frequency_penalty is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; expected more than 0"),
        ({"logprobs": -1}, "logprobs is -1; expected 0 to 20"),
        ({"logprobs": 21}, "logprobs is 21; expected 0 to 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; expected 0 to 20"),
        ({"logit_bias": {20: 1.0}}, "logit_bias: token 20; expected 0 to 19"),
        ({"logit_bias": {3: NAN}}, "logit_bias of token 3 is nan; expected a finite number"),
        ({"bad_words_token_ids": ((),)}, "bad_words_token_ids: an empty sequence"),
        ({"bad_words_token_ids": ((1, -2),)}, "bad_words_token_ids: token -2; expected 0 to 19"),
    ],
)
def test_parameters_out_of_range(values, message):
    with pytest.raises(InputError, match=message):
        SamplerState(SamplingParams(**values), [1], VOCAB)


def test_limits_are_allowed():
    check_params(SamplingParams(top_p=0.0, min_p=1.0, logprobs=VOCAB, max_tokens=1), VOCAB)
