"""How many generation requests run at once, and whether new ones are taken at all.

One `Gate` per process, shared by the middleware, which counts, and by the shutdown, which closes it
and waits until it is empty. Control calls and probes do not count; while the gate is closed they
still pass (an abort shortens the wait), except the health probe: a load balancer must look
elsewhere.
"""

import asyncio

from paddle_ernie.serve.api.errors import ErrorCode, ErrorType, error_body
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.middleware.asgi import Application, Receive, Scope, Send, answer, generates

PROBES = frozenset({"/health", "/ping"})
RETRY_AFTER_SECONDS = b"1"


class Gate:
    """Counts the requests inside. Confined to the event loop's thread."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.running = 0
        self.closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def full(self) -> bool:
        """Whether one more would be too many."""
        return self.limit is not None and self.running >= self.limit

    def enter(self) -> None:
        """One more."""
        self.running += 1
        self._empty.clear()

    def leave(self) -> None:
        """One less."""
        self.running -= 1
        assert self.running >= 0, "a request left the gate twice"
        if self.running == 0:
            self._empty.set()

    def close(self) -> None:
        """From now on new requests are refused."""
        self.closed = True

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until nobody is inside; False if that took longer."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True


class GateMiddleware:
    """Lets generation requests through a gate: 429 when it is full, 503 when it is closed."""

    def __init__(self, app: Application, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if self.gate.closed and scope["type"] == "http" and _refused_when_closed(scope):
            record_of(scope).outcome = "refused"
            code = ErrorCode.CONNECTION_ERROR
            body = error_body("The server is shutting down", ErrorType.SERVER, code=code)
            leave = {b"retry-after": RETRY_AFTER_SECONDS, b"connection": b"close"}
            return await answer(send, 503, body, leave)
        if not generates(scope):
            return await self.app(scope, receive, send)
        if self.gate.full:
            record_of(scope).outcome = "refused"
            detail = f"Too many requests,current max concurrency is {self.gate.limit}"
            return await answer(
                send, 429, {"detail": detail}, {b"retry-after": RETRY_AFTER_SECONDS}
            )
        self.gate.enter()
        try:
            await self.app(scope, receive, send)
        finally:
            self.gate.leave()


def _refused_when_closed(scope: Scope) -> bool:
    return generates(scope) or scope["path"] in PROBES
