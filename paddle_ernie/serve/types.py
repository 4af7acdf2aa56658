"""Records between the engine and whoever asks it: HTTP handlers, the terminal chat, benchmarks.

    GenerateRequest --> engine --> RequestOutput, RequestOutput, ..., the last with a finish_reason

No Paddle. Token ids are those of the model, never re-encoded text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

import numpy as np


class FinishReason(str, Enum):
    """Why a request ended."""

    STOP = "stop"
    """The end-of-sequence token, a stop id or a stop string."""
    LENGTH = "length"
    """max_tokens, or the longest sequence the server holds."""
    ABORT = "abort"
    """Asked for: /v1/abort_requests, a pause that aborts, a client that left."""
    ERROR = "error"
    """The server could not go on with it; RequestOutput.error says why."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are drawn. Values are checked where they enter."""

    max_tokens: int | None = None
    """New tokens at most; None: up to the longest sequence."""
    min_tokens: int = 0
    """Before so many new tokens, no stop id, end-of-sequence token or stop string counts."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    """Tokens below this share of the likeliest one's probability are left out."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both are subtracted from logits, by what was generated so far (OpenAI's definition)."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of what occurs in prompt or output (CTRL)."""
    seed: int = 0
    """Token i of a request depends on the seed and i, not on what else the server does."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences that are never completed."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    logprobs: int | None = None
    """None: none; 0: of the sampled token; n: also of the n likeliest."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt, which then does not come from the prefix cache."""
    temp_scaled_logprobs: bool = False
    """Log-probabilities after the temperature (what a policy gradient needs), not before."""
    top_p_normalized_logprobs: bool = False
    """After top-p, renormalised over what is left."""


@dataclass(frozen=True)
class GenerateRequest:
    """One sequence to generate; `n` choices are n requests."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    routes: bool = False
    """Return the chosen experts of every token that was run (R3)."""
    client: str = ""
    """Who asks: the scheduler shares the machine fairly between clients."""


@dataclass(frozen=True)
class TokenLogprob:
    """The sampled token's natural log-probability, and the likeliest tokens' beside it."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), likeliest first."""


@dataclass(frozen=True)
class VersionSpan:
    """Generated tokens [start, end) were sampled from the weights of `version`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True)
class RequestOutput:
    """What became known of a request since the last output."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    """Text that became certain: whole characters, and nothing that may begin a stop string."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token of `token_ids`, if asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """In the first output, one per prompt token; None for the first."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    version_spans: tuple[VersionSpan, ...] = ()
    """In the last output: spans over all generated tokens."""
    routes: np.ndarray | None = None
    """In the last output, if asked for: [prompt + generated - 1, moe layers, k], unsigned, the
    largest value where there is no record; the last sampled token was never run."""
