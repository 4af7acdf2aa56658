"""Generation requests end when their client leaves or their time is up, wherever they stand.

Frameworks let a handler that does not stream run to its end for a client that is gone; here its
task is cancelled, and with it the sequence in the engine. A client that stays but does not read is
found by the connection (`serve/middleware/connection.py`).

    request -> task of the handler   -----------------------> response
               watcher of the client --- http.disconnect ---> cancel the task
               clock                 --- request_timeout_s -> cancel it, 408 or an error event
"""

import asyncio

from paddle_ernie.serve.api.errors import ErrorCode, ErrorType, error_body
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.middleware.asgi import (
    EVENT_STREAM,
    Application,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    end_event_stream,
    generates,
    header,
)


class DeadlineMiddleware:
    """Runs generation requests in a task of their own; others pass."""

    def __init__(self, app: Application, seconds: float | None) -> None:
        self.app = app
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if not generates(scope):
            return await self.app(scope, receive, send)
        client, response = _Client(receive), _Response(send)
        work = asyncio.ensure_future(self.app(scope, client.receive, response.send))
        gone = asyncio.ensure_future(client.watch())
        try:
            await asyncio.wait(
                {work, gone}, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            record_of(scope).outcome = "disconnected" if gone.done() else "timeout"
            await _cancel(work)
            if not gone.done() and self.seconds is not None:
                await response.say_timeout(self.seconds)
        finally:
            await _cancel(gone)
            await _cancel(work)


class _Client:
    """The receiving half, shared by the handler (the body) and the watcher (what comes after)."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body_read = asyncio.Event()
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        """For the handler: the body, then nothing until the client leaves."""
        if self._body_read.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone.set()
        if not message.get("more_body", False):
            self._body_read.set()
        return message

    async def watch(self) -> None:
        """Return once the client is gone. Reads nothing before the handler has the whole body."""
        await self._body_read.wait()
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()


class _Response:
    """The sending half: remembers how far the response got."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = self._complete = self._events = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self._events = (header(message, b"content-type") or b"").startswith(EVENT_STREAM)
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
        await self._send(message)

    async def say_timeout(self, seconds: float) -> None:
        message = f"request took longer than {seconds:g} s"
        body = error_body(message, ErrorType.TIMEOUT, code=ErrorCode.TIMEOUT)
        if not self._begun:
            await answer(self._send, 408, body)
        elif not self._complete and self._events:
            await end_event_stream(self._send, body)
        # Any other response that has begun stays short, and the server closes the connection.


async def _cancel(task: "asyncio.Future[None]") -> None:
    """End a task and wait for it; what it raised by then has nobody left to tell."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as seen
