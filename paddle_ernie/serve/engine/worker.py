"""EngineWorker: an engine in a thread of its own, brought to asyncio. Used by the HTTP server.

    event loop                                     engine's thread
      submit, abort, pause, ... ---- commands ---->  between steps
      RequestStream  <---- outputs of a step -----   step, step, ...        sleeps without work
                      (one wake-up of the loop, however many sequences and steps it covers)

Promises: a consumer that is slow or gone stalls nobody (what it has not fetched is joined to one
output); one that leaves its stream ends its request; if the engine fails, every stream and call
raises EngineStoppedError and `healthy` is False. All methods are for the event loop's thread.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, TypeVar

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.serve.engine.admission import check_request
from paddle_ernie.serve.engine.control import (
    TAGS,
    WEIGHTS,
    EngineFullError,
    EngineStats,
    EngineStoppedError,
    KvMode,
    UpdateMode,
    WeightsReport,
    WeightsUpdate,
)
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.streams import RequestStream
from paddle_ernie.serve.engine.weights import ServedWeights, load_snapshot, load_weights
from paddle_ernie.serve.types import FinishReason, GenerateRequest, RequestOutput
from paddle_ernie.utils.errors import InputError, PaddleErnieError

logger = logging.getLogger(__name__)

T = TypeVar("T")
JOIN_SECONDS = 60  # the longest that a step may take when the thread is asked to end


class EngineWorker:
    """Make it, `await start()`, use it, `await close()`."""

    def __init__(self, model_dir: Path | str, options: EngineOptions | None = None) -> None:
        self.model_dir = Path(model_dir)
        self.options = options or EngineOptions()
        self.stats = EngineStats()
        """As of the last step or call."""
        self._streams: dict[str, RequestStream] = {}
        self._commands: deque[Callable[[Engine], None]] = deque()
        self._outbox: deque[RequestOutput] = deque()
        self._wake = threading.Event()
        self._changing = asyncio.Lock()  # one change of weights at a time
        self._thread: threading.Thread | None = None
        self._distributing = False
        self._calls: set[asyncio.Future] = set()
        self._failure: str | None = "the engine has not been started"
        self._closing = False
        self._stopping = False

    async def start(self) -> None:
        """Load the model and begin. Raises what loading raises."""
        self._loop = asyncio.get_running_loop()
        engine = await asyncio.to_thread(self._load)
        self.tokenizer: Tokenizer = engine.tokenizer
        self._publish(engine)
        self._failure = None
        self._thread = threading.Thread(
            target=self._main, args=(engine,), name="engine", daemon=True
        )
        self._thread.start()

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, give those here `drain_s` seconds, end the rest and the thread."""
        if self._failure is not None:
            return
        if self._thread is None:
            return
        self._closing = True
        end = self._loop.time() + drain_s
        while self._streams and self.healthy and not self.stats.paused and self._loop.time() < end:
            await asyncio.sleep(0.02)
        if self.healthy:
            await self.abort(None)
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    @property
    def healthy(self) -> bool:
        """Whether the engine runs."""
        return self._failure is None

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Begin a request; `async for output in stream`. InputError, EngineFullError or
        EngineStoppedError at once if it cannot be.
        """
        self._check_running()
        if self._closing:
            raise EngineStoppedError("the server is shutting down; send the request elsewhere")
        check_request(request, self.info)
        if request.request_id in self._streams:
            raise InputError(f"request {request.request_id!r} is here already; choose another id")
        if len(self._streams) >= (limit := self.options.max_requests):
            raise EngineFullError(f"{limit} requests are here; try again later")
        stream = RequestStream(request.request_id, self._leave)
        self._streams[request.request_id] = stream
        self._send(lambda engine: self._add(engine, request))
        return stream

    async def abort(self, ids: Collection[str] | None) -> list[str]:
        """End these requests (None: all), with finish_reason abort; those that were here."""
        return await self._call(lambda engine: engine.abort(ids))

    async def pause(self, mode: Literal["abort", "keep"] = "abort") -> None:
        """No more steps until `resume`; requests that come wait. `abort` ends those here."""
        await self._call(lambda engine: engine.pause(abort=mode == "abort"))

    async def resume(self) -> None:
        """Go on. InputError while asleep."""
        await self._call(lambda engine: engine.resume())

    async def is_paused(self) -> bool:
        """Whether steps are off."""
        return await self._call(lambda engine: engine.paused)

    async def update_weights(self, update: WeightsUpdate) -> WeightsReport:
        """Read a snapshot while requests go on, then serve it from one step to the next. On any
        error the old weights go on serving.
        """
        async with self._changing:
            self._check_running()
            begun = self._loop.time()
            weights = await asyncio.to_thread(load_snapshot, update, self.options)
            return await self._swap(weights, update.mode, update.kv, begun)

    async def swap_weights(
        self, weights: ServedWeights, mode: UpdateMode = "keep", kv: KvMode = "keep"
    ) -> WeightsReport:
        """The same with weights that are in memory (weights.pack_weights)."""
        async with self._changing:
            return await self._swap(weights, mode, kv, self._loop.time())

    async def sleep(self, tags: Collection[str] = TAGS) -> None:
        """Pause, end all requests, free weights or keys and values or both."""
        async with self._changing:
            await self._call(lambda engine: engine.sleep(tags))

    async def wakeup(self, tags: Collection[str] = TAGS) -> None:
        """Bring them back, the weights from where they were read; resume once all are back."""
        async with self._changing:
            asleep, path = await self._call(lambda e: (e.sleeping & set(tags), e.weights.path))
            weights = None
            if WEIGHTS in asleep:
                if path is None:
                    raise InputError("wakeup: the weights came from memory; send them again")
                weights = await asyncio.to_thread(load_weights, path, self.options)
            await self._call(lambda engine: engine.wakeup(tags, weights))

    async def checksum(self) -> str:
        """SHA-256 of the weights that are served."""
        return await self._call(lambda engine: engine.checksum())

    async def _swap(
        self, weights: ServedWeights, mode: UpdateMode, kv: KvMode, begun: float
    ) -> WeightsReport:
        await self._call(lambda engine: engine.update_weights(weights, mode, kv))
        seconds = self._loop.time() - begun
        logger.info("weights of version %d serve after %.1f s", weights.version, seconds)
        return WeightsReport(
            weights.version, weights.checksum, seconds, weights.tensors, weights.bytes
        )

    def _check_running(self) -> None:
        if self._failure is not None:
            raise EngineStoppedError(self._failure)

    async def _call(self, function: Callable[[Engine], T]) -> T:
        """Run a function between two steps; what it returns or raises."""
        self._check_running()
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def command(engine: Engine) -> None:
            try:
                result = function(engine)
            except PaddleErnieError as error:
                self._post(_settle, future, None, error)
            else:
                self._publish(engine)  # what a caller was told is in the figures, too
                self._post(_settle, future, result, None)

        self._send(command)
        return await future

    def _send(self, command: Callable[[Engine], None]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _leave(self, request_id: str) -> None:
        """A consumer is gone. Its stream stays until the engine's last output, so that no other
        request takes the name meanwhile.
        """
        if self.healthy:
            self._send(lambda engine: engine.abort([request_id]))

    def _distribute(self) -> None:
        self._distributing = False
        while self._outbox:
            output = self._outbox.popleft()
            stream = self._streams[output.request_id]
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            stream.push(output)

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._distribute()
        for stream in self._streams.values():
            stream.fail(reason)
        self._streams.clear()
        for future in list(self._calls):
            _settle(future, None, EngineStoppedError(reason))

    # From here on: the engine's thread.

    def _load(self) -> Engine:
        weights = load_weights(self.model_dir, self.options)
        return Engine(weights, Tokenizer.load(self.model_dir), self.options)

    def _main(self, engine: Engine) -> None:
        try:
            while self._run_commands(engine):
                if engine.has_work:
                    self._deliver(engine.step())
                    self._publish(engine)
                else:
                    self._publish(engine)
                    self._wake.wait()
            reason = "the engine was closed"
        except Exception as error:  # the thread's end: reported to everyone who waits
            logger.exception("the engine has failed")
            reason = f"the engine has failed: {type(error).__name__}: {error}"
        self._post(self._fail, reason)

    def _run_commands(self, engine: Engine) -> bool:
        """False once the worker is closed and nothing is left to say."""
        self._wake.clear()
        while self._commands:
            self._commands.popleft()(engine)
        return engine.has_work or not self._stopping

    def _add(self, engine: Engine, request: GenerateRequest) -> None:
        try:
            engine.add(request)
        except PaddleErnieError as error:
            output = RequestOutput(
                request.request_id, finish_reason=FinishReason.ERROR, error=str(error)
            )
            self._deliver([output])

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        self._outbox.extend(outputs)
        if outputs and not self._distributing:
            self._distributing = True
            self._post(self._distribute)

    def _publish(self, engine: Engine) -> None:
        self.stats, self.info = engine.stats(), engine.info

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call on the event loop, unless it is gone, and with it everyone who waits."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(future: "asyncio.Future[T]", result: T | None, error: PaddleErnieError | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
