"""From logits to tokens, for sequences with parameters of their own. Called by the engine.

    logits [R, V] --> penalties, biases, bans (rows that have any) --> ops.sampling --> ids [R]
              |                                                                          |
              +-> log-probabilities of the ids, always of the model's own logits <-------+

Token i of a request depends on its logits, its parameters, its seed and i. Log-probabilities have
the bits of `ops.token_logprobs`, where the trainer takes them: at temperature 1, or at that of the
request (temp_scaled_logprobs; greedy requests at 1); with top_p_normalized_logprobs, of logits that
are -inf outside the fewest tokens that hold top_p at that temperature.
"""

from collections.abc import Sequence

import numpy as np

from paddle_ernie.ops.sampling import NO_TOKEN, nucleus, row_logprobs, sample_rows, top_logprobs
from paddle_ernie.serve.engine.sampler_state import SamplerState, check_params
from paddle_ernie.serve.types import TokenLogprob

__all__ = ["NO_TOKEN", "Sampler", "SamplerState", "check_params"]

LOWEST_LOGPROB = -9999.0
"""Stands for -inf, which JSON does not have; OpenAI's API uses the same number."""


class Sampler:
    """Ids of `vocab_size` (the tokenizer's) and above are never produced."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(
        self, logits_RV: np.ndarray, states: Sequence[SamplerState]
    ) -> list[tuple[int, TokenLogprob | None]]:
        """The next token of every row, and its log-probability if asked for; changes the logits.

        NO_TOKEN where none can be chosen: the logits are not finite, or all tokens are excluded.
        """
        edited = [r for r, state in enumerate(states) if state.edits]
        apart = [r for r, state in enumerate(states) if _scored_apart(state)]
        own_logits = logits_RV[apart] if apart else logits_RV[:0]  # a copy
        for r in edited:
            states[r].edit(logits_RV[r])
        fused = [_fused_temperature(state) for state in states]
        rows = [state.row(value) for state, value in zip(states, fused, strict=True)]
        ids, logprobs = sample_rows(logits_RV, rows, self._vocab_size)
        result = [
            (int(token), TokenLogprob(_finite(logprob)) if value else None)
            for token, logprob, value in zip(ids, logprobs, fused, strict=True)
        ]
        if apart:
            whose = [states[r] for r in apart]
            counts = [state.params.logprobs or 0 for state in whose]
            scored = _score(own_logits, ids[apart], whose, counts)
            for r, logprob in zip(apart, scored, strict=True):
                result[r] = int(ids[r]), logprob
        return result

    def prompt_logprobs(
        self, logits_RV: np.ndarray, target_ids: Sequence[int], states: Sequence[SamplerState]
    ) -> list[TokenLogprob]:
        """Of the prompt's token that follows each row; `states`: whose prompt it is."""
        counts = [state.params.prompt_logprobs or 0 for state in states]
        return _score(logits_RV, np.asarray(target_ids, np.int64), states, counts)


def _score(
    logits_RV: np.ndarray, ids_R: np.ndarray, states: Sequence[SamplerState], counts: Sequence[int]
) -> list[TokenLogprob]:
    """The ids' log-probabilities, each with the `counts` likeliest beside it."""
    temperatures = np.array([state.logprob_temperature for state in states], np.float32)
    cut = [r for r, state in enumerate(states) if _normalised(state)]
    if cut:
        logits_RV = logits_RV.copy()
        top_ps = [states[r].params.top_p for r in cut]
        logits_RV[cut] = nucleus(logits_RV[cut], temperatures[cut], top_ps)
    logprobs = row_logprobs(logits_RV, ids_R, temperatures)
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(states)
    wanting = [r for r, count in enumerate(counts) if count]
    if wanting:
        most = max(counts)
        rows = logits_RV if len(wanting) == len(logits_RV) else logits_RV[wanting]
        top_ids, top_values = top_logprobs(rows, temperatures[wanting], most)
        for r, ids, values in zip(wanting, top_ids.tolist(), top_values.tolist(), strict=True):
            pairs = zip(ids[: counts[r]], values[: counts[r]], strict=True)
            tops[r] = tuple((token, _finite(value)) for token, value in pairs)
    return [TokenLogprob(_finite(x), top) for x, top in zip(logprobs, tops, strict=True)]


def _fused_temperature(state: SamplerState) -> float:
    """Of the log-probability that comes with the draw; 0: none does."""
    if state.params.logprobs is None or _scored_apart(state):
        return 0.0
    return state.logprob_temperature


def _scored_apart(state: SamplerState) -> bool:
    """Whether log-probabilities need more than the row that is drawn from."""
    count = state.params.logprobs
    return count is not None and (count > 0 or state.edits or _normalised(state))


def _normalised(state: SamplerState) -> bool:
    return state.params.top_p_normalized_logprobs and state.params.top_p < 1


def _finite(logprob: float) -> float:
    return max(float(logprob), LOWEST_LOGPROB)
