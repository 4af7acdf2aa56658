"""RequestStream: the outputs of one request, for the event loop. Made by the worker.

What its consumer has not fetched is joined to one output, so that a slow one costs its own tokens'
memory and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from paddle_ernie.serve.engine.control import EngineStoppedError
from paddle_ernie.serve.types import RequestOutput


class RequestStream:
    """`async for output in stream`, for one consumer. Leaving the loop early, or being cancelled
    in it, ends the request.
    """

    def __init__(self, request_id: str, leave: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._leave = leave
        self._pending: list[RequestOutput] = []
        self._ready = asyncio.Event()
        self._failure: str | None = None
        self._over = False

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        # A generator: Python closes it when a loop over it is left.
        try:
            while (output := await self.get()) is not None:
                yield output
        finally:
            self.close()

    async def get(self) -> RequestOutput | None:
        """The next output; None after the last or after `cancel`. EngineStoppedError if the engine
        fails before. Cancelled while it waits, it ends the request.
        """
        try:
            while not (self._pending or self._over or self._failure):
                self._ready.clear()
                await self._ready.wait()
        except asyncio.CancelledError:
            self.close()
            raise
        if self._over:
            return None
        if not self._pending:
            self._over = True
            raise EngineStoppedError(self._failure)
        output, self._pending = join_outputs(self._pending), []
        self._over = output.finish_reason is not None
        return output

    async def cancel(self) -> None:
        """End the request; nothing more comes."""
        self.close()

    async def aclose(self) -> None:
        """The same, as generators call it."""
        self.close()

    def close(self) -> None:
        """End the request, if it has not ended."""
        if not self._over:
            self._over = True
            self._pending = []
            self._ready.set()
            self._leave(self.request_id)

    def push(self, output: RequestOutput) -> None:
        """The worker has an output."""
        if not self._over:
            self._pending.append(output)
            self._ready.set()

    def fail(self, reason: str) -> None:
        """Nothing more will come, though the request has not ended."""
        self._failure = reason
        self._ready.set()


def join_outputs(outputs: list[RequestOutput]) -> RequestOutput:
    """Consecutive outputs of one request as one."""
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    logprobs = [o.logprobs for o in outputs if o.logprobs is not None]
    prompt_logprobs = [o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None]
    return RequestOutput(
        request_id=last.request_id,
        token_ids=tuple(token for o in outputs for token in o.token_ids),
        text="".join(o.text for o in outputs),
        logprobs=tuple(entry for part in logprobs for entry in part) if logprobs else None,
        prompt_logprobs=prompt_logprobs[0] if prompt_logprobs else None,
        finish_reason=last.finish_reason,
        error=last.error,
        cached_tokens=last.cached_tokens,
        version_spans=last.version_spans,
        routes=last.routes,
    )
