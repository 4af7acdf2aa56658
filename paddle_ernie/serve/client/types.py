"""What the client of the HTTP API returns and raises. No Paddle.

The RL system reads rollouts from these records; see serve/client/client.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paddle_ernie.serve.types import FinishReason, VersionSpan
from paddle_ernie.utils.errors import PaddleErnieError


class ServerError(PaddleErnieError):
    """The server refused a request, or could not be reached for as long as we wait."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None: no answer came."""
        self.code = code
        """`error.code` of the body, such as context_length_exceeded."""


@dataclass(frozen=True)
class Choice:
    """One continuation; arrays per token have the length of `token_ids`.

    Choice(0, "is 5.", (318, 642, 13), (-0.1, -0.9, -0.2), FinishReason.STOP, ...)
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    """Empty if the server does not return ids."""
    logprobs: tuple[float, ...] | None
    """Of the tokens, if asked for. Raw, or after the temperature if that was asked for."""
    finish_reason: FinishReason | str | None
    """A string where the server knows more reasons than we do. ABORT: go on by sending prompt and
    tokens again."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Which weights made which tokens; empty from servers that do not say."""
    routes: np.ndarray | None = None
    """Chosen experts [prompt + generated - 1, moe layers, k], if asked for and served inline."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning: str | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    id: str
    """Of the request, as /v1/abort_requests takes it; routes in a store go by it as well."""
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def choice(self) -> Choice:
        """The only one, as with n = 1."""
        assert len(self.choices) == 1, f"{len(self.choices)} choices; ask for one, or look at all"
        return self.choices[0]


@dataclass(frozen=True)
class Piece:
    """What a stream brought of one choice. The last has a finish reason."""

    id: str
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    finish_reason: FinishReason | str | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    routes: np.ndarray | None = None


@dataclass(frozen=True)
class Retry:
    """How long a request is sent again that met a paused, full or starting server."""

    total_s: float = 600.0
    """A weight update of a large model takes minutes; after this the error is raised."""
    first_s: float = 0.05
    most_s: float = 2.0
    """Waits double from the first to the most, or are what the server asks for."""
