"""Engine: many requests on one model, a step at a time. Synchronous, confined to one thread.

    add --> Scheduler --(sequence, tokens)...--> forward --tokens--> Sequence.accept --> outputs
               |  ^                                 |
             pages |                          routes, log-probabilities
            PrefixCache

Called by the worker, which brings it to asyncio, and by benchmarks. Promises: tokens, bits of
log-probabilities and routes of a request do not depend on what else runs, on chunks, on the prefix
cache or on preemption. Between steps every page belongs to running sequences, the cache, or nobody.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.ops.paged_attention import KVPages
from paddle_ernie.serve.engine.admission import check_request, max_len
from paddle_ernie.serve.engine.control import (
    KV_CACHE,
    TAGS,
    WEIGHTS,
    EngineFullError,
    EngineStats,
    KvMode,
    UpdateMode,
)
from paddle_ernie.serve.engine.detokeniser import Detokeniser
from paddle_ernie.serve.engine.forward import forward
from paddle_ernie.serve.engine.memory import model_info
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.prefix_cache import PrefixCache
from paddle_ernie.serve.engine.sampler import NO_TOKEN, Sampler, SamplerState
from paddle_ernie.serve.engine.scheduler import Scheduler
from paddle_ernie.serve.engine.sequence import Sequence
from paddle_ernie.serve.engine.weights import ServedWeights
from paddle_ernie.serve.types import FinishReason, GenerateRequest, RequestOutput, TokenLogprob
from paddle_ernie.utils.errors import CheckpointError, InputError

NO_NUMBERS = "the model's logits are not finite, or every token is excluded: nothing can be drawn"


@dataclass
class EngineTotals:
    """What EngineStats counts from the start."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    weight_updates: int = 0


class Engine:
    """See above. Requests and control calls come between steps."""

    def __init__(
        self, weights: ServedWeights, tokenizer: Tokenizer, options: EngineOptions
    ) -> None:
        assert weights.model is not None, "weights without a model"
        self.weights = weights
        self.tokenizer = tokenizer
        self.options = options
        self.config = weights.model.config
        self.info = model_info(self.weights, self.tokenizer, self.options)
        self.scheduler = Scheduler(options, self._new_cache())
        self.paused = False
        self._sampler = Sampler(tokenizer.vocab_size)
        self._sequences: dict[str, Sequence] = {}
        self._ended: list[RequestOutput] = []
        """Last outputs of what ended between steps."""
        self._sleeping: frozenset[str] = frozenset()
        self._totals = EngineTotals()

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._ended) or bool(self._sequences and not self.paused)

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. InputError if it can never be served, EngineFullError if not now."""
        check_request(request, self.info)
        if request.request_id in self._sequences:
            raise InputError(f"request {request.request_id!r} is here already; choose another id")
        if len(self._sequences) >= (limit := self.options.max_requests):
            raise EngineFullError(f"{limit} requests are here; try again later")
        sequence = self._sequence(request)
        self._sequences[request.request_id] = sequence
        self.scheduler.add(sequence)
        self._totals.prompt_tokens += sequence.num_prompt

    def abort(self, ids: Collection[str] | None = None) -> list[str]:
        """End these requests (None: all); the next step returns their last outputs. Returns the
        ids that were here.
        """
        wanted = dict.fromkeys(self._sequences if ids is None else ids)
        found = [request_id for request_id in wanted if request_id in self._sequences]
        for request_id in found:
            sequence = self._sequences[request_id]
            text = sequence.detokeniser.flush()
            self._ended.append(self._end(sequence, FinishReason.ABORT, text=text))
            self._totals.aborted += 1
        return found

    def step(self) -> list[RequestOutput]:
        """Run one step; what became known of each request."""
        outputs, self._ended = self._ended, []
        if self.paused or not self._sequences:
            return outputs
        assert self.weights.model is not None
        plan = self.scheduler.schedule()
        assert plan, f"{len(self._sequences)} requests, and none of them can go on"
        drawn = forward(self.weights.model, self._pages, self._sampler, plan)
        for sequence, count in plan:
            self.scheduler.computed(sequence, count)
            self._totals.computed_tokens += count
            if sequence.computed == sequence.max_len:  # the prompt fills the longest sequence
                outputs.append(self._end(sequence, FinishReason.LENGTH))
        outputs += [self._extend(*draw) for draw in drawn]
        self._totals.steps += 1
        return outputs

    def pause(self, *, abort: bool) -> None:
        """Steps do nothing until `resume`. `abort` ends all requests and empties the cache."""
        self.paused = True
        if abort:
            self.abort()
            self.scheduler.forget_pages(self.weights.version, self.config.moe_k)

    def resume(self) -> None:
        """Go on. InputError while asleep."""
        if self._sleeping:
            raise InputError(
                f"resume: {', '.join(sorted(self._sleeping))} asleep; call wakeup first"
            )
        self.paused = False

    def update_weights(
        self, weights: ServedWeights, mode: UpdateMode = "keep", kv: KvMode = "keep"
    ) -> None:
        """Serve other weights from the next step on. CheckpointError if they are of another model,
        and nothing has changed.
        """
        assert weights.model is not None, "weights without a model"
        if weights.model.config != self.config:
            raise CheckpointError(
                f"new weights: a model of {weights.model.config}; expected {self.config}, which "
                "is served: start another server for another architecture"
            )
        if mode == "abort":
            self.abort()
        if kv == "recompute":
            self.scheduler.preempt_all()
        self._serve(weights)
        self._totals.weight_updates += 1

    def sleep(self, tags: Collection[str] = TAGS) -> None:
        """Pause, end all requests, and free the memory of `tags`."""
        wanted = _checked(tags)
        self.pause(abort=True)
        if WEIGHTS in wanted:
            self.weights = replace(self.weights, model=None)
        if KV_CACHE in wanted:
            self.scheduler.cache = self._cache_of(KVPages(1, 0, 1, 2))  # empty
        self._sleeping |= wanted

    def wakeup(self, tags: Collection[str] = TAGS, weights: ServedWeights | None = None) -> None:
        """Bring the memory of `tags` back; with nothing asleep, resume. `weights`: those to serve,
        needed if they sleep and are among `tags`.
        """
        waking = _checked(tags) & self._sleeping
        if WEIGHTS in waking:
            assert weights is not None, "weights to wake up with"
            self._serve(weights)
        self._sleeping -= waking
        if not self._pages.num_pages and not self._sleeping:
            self.scheduler.cache = self._new_cache()
        if not self._sleeping:
            self.resume()

    @property
    def sleeping(self) -> frozenset[str]:
        """Tags of what was freed."""
        return self._sleeping

    def checksum(self) -> str:
        """SHA-256 of the weights that are served."""
        return self.weights.checksum

    def stats(self) -> EngineStats:
        """This moment."""
        scheduler, cache = self.scheduler, self.scheduler.cache
        return EngineStats(
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            free_pages=cache.num_available,
            cached_pages=len(cache),
            total_pages=cache.pages.num_pages,
            paused=self.paused,
            sleeping=tuple(sorted(self._sleeping)),
            version=self.weights.version,
            preemptions=scheduler.preemptions,
            **vars(self._totals),
        )

    @property
    def _pages(self) -> KVPages:
        return self.scheduler.cache.pages

    def _serve(self, weights: ServedWeights) -> None:
        self.weights = weights
        self._sleeping -= {WEIGHTS}
        self.scheduler.forget_pages(weights.version, self.config.moe_k)
        self.info = model_info(self.weights, self.tokenizer, self.options)

    def _new_cache(self) -> PrefixCache:
        assert self.weights.model is not None
        return self._cache_of(self.weights.model.new_pages(self.info.num_pages))

    def _cache_of(self, pages: KVPages) -> PrefixCache:
        enabled = self.options.enable_prefix_caching
        return PrefixCache(pages, self.weights.version, self.config.moe_k, enabled=enabled)

    def _sequence(self, request: GenerateRequest) -> Sequence:
        sampling, eos_ids = request.sampling, frozenset({self.tokenizer.eos_id})
        streamer = self.tokenizer.streamer()
        return Sequence(
            request,
            SamplerState(sampling, request.prompt_ids, self.info.vocab_size, eos_ids),
            Detokeniser(streamer, sampling.stop, sampling.include_stop_str_in_output),
            stop_ids=sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else eos_ids),
            max_len=max_len(request, self.info.max_model_len),
            keep_routes=bool(self.info.num_moe_layers)
            and (request.routes or self.options.keep_routes),
        )

    def _extend(
        self, sequence: Sequence, token: int, logprob: TokenLogprob | None
    ) -> RequestOutput:
        if token == NO_TOKEN:
            return self._end(sequence, FinishReason.ERROR, error=NO_NUMBERS)
        text, reason = sequence.accept(token, self.weights.version)
        self._totals.generated_tokens += 1
        logprobs = None if logprob is None else (logprob,)
        if reason is not None:
            return self._end(sequence, reason, (token,), text, logprobs)
        return RequestOutput(
            sequence.request_id, (token,), text, logprobs,
            sequence.take_prompt_logprobs(), cached_tokens=sequence.cached_tokens or 0,
        )  # fmt: skip

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        """The last output; everything that the sequence held is free."""
        del self._sequences[sequence.request_id]
        self.scheduler.finish(sequence)
        self._totals.finished += 1
        self._totals.cached_tokens += sequence.cached_tokens or 0
        return RequestOutput(
            sequence.request_id, token_ids, text, logprobs, sequence.take_prompt_logprobs(),
            reason, error, sequence.cached_tokens or 0, sequence.version_spans(),
            sequence.routes() if sequence.request.routes else None,
        )  # fmt: skip


def _checked(tags: Collection[str]) -> frozenset[str]:
    if strange := set(tags) - TAGS:
        raise InputError(f"tags {sorted(strange)}; expected some of {sorted(TAGS)}")
    return frozenset(tags)
