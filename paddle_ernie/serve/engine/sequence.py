"""Sequence: one request on its way through the engine. Confined to the engine's thread.

    ids      [prompt | generated]
    computed  positions whose keys and values are in `pages`; the rest is still to be run
    routes    of the positions that were run

The scheduler moves it between states and gives it pages; the engine runs and extends it.
"""

from enum import Enum

import numpy as np

from paddle_ernie.ops.paged_attention import PAGE_SIZE
from paddle_ernie.serve.engine.detokeniser import Detokeniser
from paddle_ernie.serve.engine.prefix_cache import next_key
from paddle_ernie.serve.engine.sampler import SamplerState
from paddle_ernie.serve.types import FinishReason, GenerateRequest, TokenLogprob, VersionSpan


class State(str, Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    PARKED = "parked"
    """Waits for another sequence that is computing pages of its prompt."""
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One request, and all that the engine knows of it."""

    def __init__(
        self,
        request: GenerateRequest,
        sampler: SamplerState,
        detokeniser: Detokeniser,
        *,
        stop_ids: frozenset[int],
        max_len: int,
        keep_routes: bool,
    ) -> None:
        self.request = request
        self.sampler = sampler
        self.detokeniser = detokeniser
        self.stop_ids = stop_ids
        self.max_len = max_len
        """Prompt and new tokens at most."""
        self.ids = list(request.prompt_ids)
        self.num_prompt = len(self.ids)
        self.arrival = 0
        """Given by the scheduler: the lower, the older."""
        self.state = State.WAITING
        self.pages: list[int] = []
        self.computed = 0
        self.keys: list[bytes] = []
        """Of its full pages, as far as they were asked for."""
        self.known = 0
        """Leading pages that the prefix cache knows."""
        self.parked_at: bytes | None = None
        self.mixed = False
        """Its pages come from several versions of the weights: never shared."""
        self.cached_tokens: int | None = None
        """Of the prompt, found in the prefix cache at the first start."""
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self._gave_prompt_logprobs = False
        self.keep_routes = keep_routes
        self._routes: np.ndarray | None = None
        self._num_routes = 0
        self._span_starts: list[tuple[int, int]] = []

    @property
    def request_id(self) -> str:
        """Its name."""
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        """New tokens so far."""
        return len(self.ids) - self.num_prompt

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether some are missing."""
        known = self.prompt_logprobs
        return known is not None and len(known) < self.num_prompt

    def take_prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """All of them, once."""
        known = self.prompt_logprobs
        if known is None or self._gave_prompt_logprobs or len(known) < self.num_prompt:
            return None
        self._gave_prompt_logprobs = True
        return tuple(known)

    @property
    def remaining(self) -> int:
        """Tokens to run before the next one can be drawn."""
        return len(self.ids) - self.computed

    def page_keys(self, root: bytes, count: int) -> list[bytes]:
        """Keys of the first `count` pages, which must be full."""
        for page in range(len(self.keys), count):
            ids = self.ids[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
            self.keys.append(next_key(self.keys[-1] if self.keys else root, ids))
        return self.keys[:count]

    def accept(self, token_id: int, version: int) -> tuple[str, FinishReason | None]:
        """A token was drawn from the weights of `version`: text that became certain, and whether
        the sequence is over.
        """
        spans = self._span_starts
        if not spans or spans[-1][1] != version:
            spans.append((self.num_generated, version))
        self.ids.append(token_id)
        self.sampler.append(token_id)
        params, text = self.request.sampling, self.detokeniser
        may_stop = self.num_generated > params.min_tokens
        if may_stop and token_id in self.stop_ids:
            shown = text.push(token_id) if params.include_stop_str_in_output else ""
            return shown + text.flush(), FinishReason.STOP
        certain = text.push(token_id, may_stop=may_stop)
        if text.stopped:
            return certain, FinishReason.STOP
        if len(self.ids) >= self.max_len:
            return certain + text.flush(), FinishReason.LENGTH
        return certain, None

    def version_spans(self) -> tuple[VersionSpan, ...]:
        """Which weights each generated token comes from."""
        if not (spans := self._span_starts):
            return ()
        ends = [start for start, _ in spans[1:]] + [self.num_generated]
        return tuple(
            VersionSpan(start, end, version)
            for (start, version), end in zip(spans, ends, strict=True)
        )

    def add_routes(self, first: int, routes_nLK: np.ndarray) -> None:
        """Routes of the positions from `first` on. Those that have some keep them: a row belongs
        to the pass that the token after it was drawn from.
        """
        end = first + len(routes_nLK)
        if end <= self._num_routes:
            return
        start = max(first, self._num_routes)
        assert start == self._num_routes, f"routes from {start}, known up to {self._num_routes}"
        if self._routes is None or end > len(self._routes):
            self._grow(end, routes_nLK)
        self._routes[start:end] = routes_nLK[start - first :]
        self._num_routes = end

    def page_routes(self, page: int) -> np.ndarray | None:
        """A copy of the routes of a full page, for the prefix cache."""
        if not self.keep_routes or self._routes is None:
            return None
        return self._routes[page * PAGE_SIZE : (page + 1) * PAGE_SIZE].copy()

    def routes(self) -> np.ndarray | None:
        """[prompt + generated - 1, moe layers, k]; None before anything was run.

        Rows of an aborted request that were not run hold the largest value of the type.
        """
        if self._routes is None:
            return None
        rows = np.full(
            (len(self.ids) - 1, *self._routes.shape[1:]), np.iinfo(self._routes.dtype).max,
            self._routes.dtype,
        )  # fmt: skip
        known = min(self._num_routes, len(rows))
        rows[:known] = self._routes[:known]
        return rows

    def _grow(self, rows: int, like_nLK: np.ndarray) -> None:
        grown = np.empty(
            (max(rows, min(2 * rows, self.max_len)), *like_nLK.shape[1:]), like_nLK.dtype
        )
        if self._routes is not None:
            grown[: self._num_routes] = self._routes[: self._num_routes]
        self._routes = grown
