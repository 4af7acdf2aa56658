"""What drawing the next token of one sequence needs to know of it. Called by the sampler.

    prompt, generated tokens --> penalties and biases on logits, tokens that are not allowed now

In this order: repetition penalty, frequency and presence penalty, logit bias, tokens excluded by
min_tokens and bad words.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from paddle_ernie.ops.sampling import RowParams
from paddle_ernie.serve.types import SamplingParams
from paddle_ernie.utils.errors import InputError

GREEDY_BELOW = 1e-5
"""A smaller temperature is greedy: over it, logits differ by nothing or by everything."""
MAX_PENALTY = 2.0  # of presence and frequency, in OpenAI's API


class SamplerState:
    """Grows with its sequence, by `append`; outlives preemptions, for it holds no logits."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        """InputError if a parameter is out of range."""
        check_params(params, vocab_size)
        self.params = params
        self.position = 0
        """Tokens generated."""
        self.greedy = params.temperature < GREEDY_BELOW
        temperature = 1.0 if self.greedy or not params.temp_scaled_logprobs else params.temperature
        self.logprob_temperature = temperature
        stops = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_ids
        self._stops = _array(i for i in stops if 0 <= i < vocab_size)
        self._bias = _array(params.logit_bias), np.array([*params.logit_bias.values()], np.float32)
        words = params.bad_words_token_ids
        self._bad_tokens = _array(word[0] for word in words if len(word) == 1)
        self._bad_words = tuple(word for word in words if len(word) > 1)
        self._tail = list(prompt_ids[-self._longest_prefix :]) if self._bad_words else []
        self._seen = _Seen(prompt_ids, params) if _has_penalty(params) else None
        self._always_edits = bool(self._seen or params.logit_bias or words)

    @property
    def edits(self) -> bool:
        """Whether `edit` changes anything now."""
        return self._always_edits or bool(len(self._stops) and self._may_not_stop)

    def edit(self, logits_V: np.ndarray) -> None:
        """From the model's logits to those that are drawn from, in place."""
        if self._seen:
            self._seen.penalise(logits_V)
        ids, values = self._bias
        if len(ids):
            logits_V[ids] += values
        if self._may_not_stop:
            logits_V[self._stops] = -np.inf
        logits_V[self._bad_tokens] = -np.inf
        for *prefix, last in self._bad_words:
            if self._tail[-len(prefix) :] == prefix:
                logits_V[last] = -np.inf

    def append(self, token_id: int) -> None:
        """After a token was sampled."""
        self.position += 1
        if self._seen:
            self._seen.add(token_id)
        if self._bad_words:
            self._tail = [*self._tail, token_id][-self._longest_prefix :]

    def row(self, logprob_temperature: float) -> RowParams:
        """The next draw; see RowParams for the argument."""
        p = self.params
        temperature = 0.0 if self.greedy else p.temperature
        return RowParams(
            temperature, p.top_p, p.min_p, logprob_temperature, p.top_k, p.seed, self.position
        )

    @property
    def _may_not_stop(self) -> bool:
        return self.position < self.params.min_tokens

    @property
    def _longest_prefix(self) -> int:
        return max(map(len, self._bad_words)) - 1


class _Seen:
    """Distinct tokens of prompt and output, with how often the output has them."""

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._params = params
        prompt = set(prompt_ids) if params.repetition_penalty != 1 else ()
        self._counts = Counter(dict.fromkeys(prompt, 0))
        self._arrays: tuple[np.ndarray, np.ndarray] | None = None
        """Ids and counts, as long as the set of ids stays."""
        self._slots: dict[int, int] = {}

    def add(self, token_id: int) -> None:
        known = token_id in self._counts
        self._counts[token_id] += 1
        if self._arrays and known:
            self._arrays[1][self._slots[token_id]] += 1
        else:
            self._arrays = None

    def penalise(self, logits_V: np.ndarray) -> None:
        ids, counts = self._current()
        p = self._params
        values = logits_V[ids]
        if p.repetition_penalty != 1:
            penalty = np.float32(p.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        values -= np.float32(p.frequency_penalty) * counts
        values -= np.float32(p.presence_penalty) * (counts > 0)
        logits_V[ids] = values

    def _current(self) -> tuple[np.ndarray, np.ndarray]:
        if self._arrays is None:
            self._slots = {token: slot for slot, token in enumerate(self._counts)}
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            self._arrays = _array(self._counts), counts
        return self._arrays


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """InputError that names the first parameter out of range, its value and the range."""
    p = params
    for name, valid, expected in (
        ("max_tokens", p.max_tokens is None or p.max_tokens >= 1, "1 or more"),
        ("min_tokens", p.min_tokens >= 0, "0 or more"),
        ("temperature", 0 <= p.temperature < math.inf, "0 (greedy) or more"),
        ("top_p", 0 <= p.top_p <= 1, "0 to 1"),
        ("top_k", p.top_k >= 0, "0 (all tokens) or more"),
        ("min_p", 0 <= p.min_p <= 1, "0 to 1"),
        ("presence_penalty", abs(p.presence_penalty) <= MAX_PENALTY, "-2 to 2"),
        ("frequency_penalty", abs(p.frequency_penalty) <= MAX_PENALTY, "-2 to 2"),
        ("repetition_penalty", 0 < p.repetition_penalty < math.inf, "more than 0; 1 does nothing"),
        ("logprobs", p.logprobs is None or 0 <= p.logprobs <= vocab_size, f"0 to {vocab_size}"),
        (
            "prompt_logprobs",
            p.prompt_logprobs is None or 0 <= p.prompt_logprobs <= vocab_size,
            f"0 to {vocab_size}",
        ),
    ):
        if not valid:
            raise InputError(f"{name} is {getattr(p, name)}; expected {expected}")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise InputError(
            f"min_tokens is {p.min_tokens}; expected at most max_tokens, which is {p.max_tokens}"
        )
    for token, value in p.logit_bias.items():
        _check_id("logit_bias", token, vocab_size)
        if not math.isfinite(value):
            raise InputError(f"logit_bias of token {token} is {value}; expected a finite number")
    for word in p.bad_words_token_ids:
        if not word:
            raise InputError("bad_words_token_ids: an empty sequence; expected one token or more")
        for token in word:
            _check_id("bad_words_token_ids", token, vocab_size)


def _check_id(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise InputError(
            f"{name}: token {token}; expected 0 to {vocab_size - 1}, the tokenizer's ids"
        )


def _has_penalty(params: SamplingParams) -> bool:
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    )


def _array(ids: Iterable[int]) -> np.ndarray:
    return np.array([*ids], np.int64)
