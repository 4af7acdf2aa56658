"""What the handlers of chats and completions share: one server's parts, and its running requests.

    handler -> Service.start(sequences) -> Generation: (index, RequestOutput) of n sequences merged
                                                       as they come; closing it ends them all

Made by serve/api/app.py, once per application; for the event loop's thread.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi.responses import Response

from paddle_ernie.serve import routes
from paddle_ernie.serve.api.chat_template import ChatTemplate, Prompt
from paddle_ernie.serve.api.errors import (
    ApiError,
    asleep_error,
    full_error,
    internal_error,
    paused_error,
)
from paddle_ernie.serve.api.protocol import GenerationRequest
from paddle_ernie.serve.api.request_params import check_length, check_model, sampling_params
from paddle_ernie.serve.api.settings import RouteStoreKind, ServerSettings
from paddle_ernie.serve.api.streaming import Json, event_response, json_response, version_spans
from paddle_ernie.serve.api.token_texts import TokenTexts
from paddle_ernie.serve.engine.control import EngineFullError, EngineStoppedError
from paddle_ernie.serve.engine.streams import RequestStream, join_outputs
from paddle_ernie.serve.engine.worker import EngineWorker
from paddle_ernie.serve.middleware.access_log import RequestRecord
from paddle_ernie.serve.route_store import RouteStore
from paddle_ernie.serve.types import FinishReason, GenerateRequest, RequestOutput
from paddle_ernie.utils.errors import InputError, PaddleErnieError

logger = logging.getLogger(__name__)

LONG_TEXT_CHARS = 8192  # about 2 ms of tokenising; longer texts must not hold up other streams


Spelling = Callable[..., Json]
"""`TokenTexts.chat` or `.completion`."""


class Answer(Protocol):
    """What a handler makes of the outputs of its sequences."""

    async def whole(self, generation: "Generation") -> Json:
        """One object, every key there."""

    def stream(self, generation: "Generation") -> AsyncIterator[bytes]:
        """Events."""


@dataclass
class Service:
    """One server."""

    worker: EngineWorker
    settings: ServerSettings
    template: ChatTemplate
    texts: TokenTexts
    parse_reasoning: bool = False
    route_store: RouteStore | None = None
    running: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of sequences in the engine by the id of their response."""

    def check(self, request: GenerationRequest) -> None:
        """ApiError if no request, or not this one, can be taken now."""
        stats = self.worker.stats
        if self.settings.dynamic_load_weight and stats.sleeping:
            raise asleep_error()
        if stats.paused:
            raise paused_error()
        check_model(request.model, self.settings)

    async def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a plain text."""
        encode = self.worker.tokenizer.encode
        if len(text) < LONG_TEXT_CHARS:
            return tuple(encode(text))
        return tuple(await asyncio.to_thread(encode, text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of prompt ids; what is no id is refused first."""
        size = self.worker.info.vocab_size
        if wrong := next((token for token in ids if token >= size), None):
            raise ApiError(f"prompt token {wrong}; expected ids below {size}", param="prompt")
        return self.worker.tokenizer.decode(ids)

    def start(
        self,
        response_id: str,
        prompts: Sequence[Prompt],
        request: GenerationRequest,
        record: RequestRecord,
        stop_ids: Collection[int] = (),
    ) -> "Generation":
        """Hand n sequences per prompt to the engine, all or none."""
        if response_id in self.running:
            raise ApiError(f"request {response_id!r} is running; choose another request_id",
                           param="request_id")  # fmt: skip
        n = request.n or 1
        for prompt in prompts:
            check_length(len(prompt.ids), request, self.worker.info)
        sequences = []
        for i in range(n * len(prompts)):
            tokenizer = self.worker.tokenizer
            sampling = sampling_params(request, i % n, tokenizer, self.settings, stop_ids)
            sequences.append(
                GenerateRequest(
                    f"{response_id}_{i}",
                    prompts[i // n].ids,
                    sampling,
                    routes=self._wants_routes(request),
                    client=record.client,
                )
            )
        streams = self._submit(sequences)
        for sequence in sequences:
            record.begin(sequence)
        self.running[response_id] = tuple(s.request_id for s in sequences)
        return Generation(self, response_id, streams, record)

    def sequence_ids(self, given: Sequence[str]) -> list[str]:
        """Ids of sequences, for ids of responses or of sequences."""
        return [sequence for name in given for sequence in self.running.get(name, (name,))]

    def logprobs(self, output: RequestOutput, request: GenerationRequest, write: Spelling) -> Any:
        """`logprobs` of an output, written by `texts.chat` or `.completion`; None without."""
        if output.logprobs is None:
            return None
        decode = bool(request.include_logprobs_decode_token)
        return write(output.token_ids, output.logprobs, decode=decode)

    def prompt_logprobs(
        self, output: RequestOutput, request: GenerationRequest, prompt: Prompt
    ) -> Any:
        """`prompt_logprobs` of an output; None where it has none."""
        if output.prompt_logprobs is None:
            return None
        decode = bool(request.include_logprobs_decode_token)
        return self.texts.prompt(prompt.ids, output.prompt_logprobs, decode=decode)

    def what_came(
        self, output: RequestOutput, request: GenerationRequest, prompt: Prompt, write: Spelling
    ) -> Json:
        """What a streamed choice has beside its text and ids: only what this output brought."""
        found: Json = {}
        if output.logprobs is not None:
            found["logprobs"] = self.logprobs(output, request, write)
        if output.prompt_logprobs is not None:
            found["prompt_logprobs"] = self.prompt_logprobs(output, request, prompt)
        if output.finish_reason is not None:
            found["finish_reason"] = output.finish_reason.value
            found["version_spans"] = version_spans(output)
            if output.routes is not None:
                found["routed_experts"] = self.encode_routes(output, request)
        return found

    def encode_routes(self, output: RequestOutput, request: GenerationRequest) -> Any:
        """`routed_experts` of a last output; None where they were not asked for inline."""
        replay = self.settings.routing_replay
        inline = replay is not None and replay.store is RouteStoreKind.RESPONSE
        if output.routes is None or not (inline or request.return_routed_experts):
            return None
        count = self.worker.info.num_experts
        return routes.encode(output.routes, count, packed=request.pack_routed_experts)

    async def store_routes(self, output: RequestOutput) -> None:
        """Write a last output's routes to the local store, if there is one.

        Requests whose id names no rollout have none; FastDeploy stops at them.
        """
        if self.route_store is None or output.routes is None:
            return
        try:
            await asyncio.to_thread(self.route_store.put, output.request_id, output.routes)
        except InputError as error:
            logger.warning("routes are not kept: %s", error)

    def _wants_routes(self, request: GenerationRequest) -> bool:
        return bool(request.return_routed_experts) or self.settings.routing_replay is not None

    def _submit(self, sequences: Sequence[GenerateRequest]) -> list[RequestStream]:
        streams: list[RequestStream] = []
        try:
            for sequence in sequences:
                streams.append(self.worker.submit(sequence))
        except PaddleErnieError as error:
            for stream in streams:
                stream.close()
            if isinstance(error, EngineFullError):
                raise full_error(str(error)) from error
            if isinstance(error, EngineStoppedError):
                raise internal_error(str(error)) from error
            raise ApiError(str(error), param="prompt") from error
        return streams


async def respond(answer: Answer, generation: "Generation", *, stream: bool) -> Response:
    """The whole answer, or its events as they come."""
    if stream:
        return event_response(answer.stream(generation))
    async with generation:
        return json_response(await answer.whole(generation))


class Generation:
    """The sequences of one response. `async with` it: leaving ends those that still run, and so
    does dropping it, as happens when the client leaves before the response begins.
    """

    def __init__(
        self,
        service: Service,
        response_id: str,
        streams: list[RequestStream],
        record: RequestRecord,
    ) -> None:
        self._service = service
        self._id = response_id
        self._streams = streams
        self._record = record
        self._pumps: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End what still runs."""
        if not self._streams:
            return
        for stream in self._streams:
            stream.close()
        for pump in self._pumps:
            pump.cancel()
        self._streams, self._pumps = [], []
        self._service.running.pop(self._id, None)

    async def outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(index, output) in the order they come; ApiError if a sequence cannot go on."""
        source = self._merged() if len(self._streams) > 1 else self._only()
        async for index, output in source:
            self._record.output(output)
            if output.finish_reason is FinishReason.ERROR:
                raise internal_error(output.error or "the request has failed")
            if output.finish_reason is not None:
                await self._service.store_routes(output)
            yield index, output

    async def whole(self) -> list[RequestOutput]:
        """Every sequence's outputs as one, once all have ended."""
        parts: list[list[RequestOutput]] = [[] for _ in self._streams]
        async for index, output in self.outputs():
            parts[index].append(output)
        return [join_outputs(outputs) for outputs in parts]

    async def _only(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        try:
            while (output := await self._streams[0].get()) is not None:
                yield 0, output
        except EngineStoppedError as error:
            raise internal_error(str(error)) from error

    async def _merged(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        queue: asyncio.Queue[tuple[int, RequestOutput | EngineStoppedError | None]]
        queue = asyncio.Queue(maxsize=2 * len(self._streams))

        async def pump(index: int, stream: RequestStream) -> None:
            try:
                while (output := await stream.get()) is not None:
                    await queue.put((index, output))
                await queue.put((index, None))
            except EngineStoppedError as error:
                await queue.put((index, error))

        self._pumps = [asyncio.ensure_future(pump(i, s)) for i, s in enumerate(self._streams)]
        running = len(self._streams)
        while running:
            index, output = await queue.get()
            if isinstance(output, EngineStoppedError):
                raise internal_error(str(output)) from output
            if output is None:
                running -= 1
            else:
                yield index, output
