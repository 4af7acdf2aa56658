"""What a request must pass before a handler sees it: a key, the size of its body, the gate.

    records -> API key -> body -> gate -> deadline -> handlers
               401        413     429     408, and cancels when the client leaves
                          408     503

`install` is called once per application (the server's, or the front's of several workers).
"""

import hashlib
import hmac
import os
from collections.abc import Iterable, MutableMapping
from typing import Protocol

import anyio
from starlette.applications import Starlette

from paddle_ernie.serve.api.errors import ErrorCode, ErrorType, error_body
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.middleware.asgi import Application, Message, Receive, Scope, Send, answer
from paddle_ernie.serve.middleware.asgi import header as header_of
from paddle_ernie.serve.middleware.deadlines import DeadlineMiddleware
from paddle_ernie.serve.middleware.gate import Gate, GateMiddleware

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics"})
"""Probes and scrapers carry no keys."""

KEY_VARIABLE = "FD_API_KEY"
LINGER_SECONDS = 2.0  # what is left of a body that is too long is read, and dropped, for so long


class LimitSettings(Protocol):
    """What of the server's settings is used here."""

    api_keys: tuple[str, ...]
    max_concurrency: int | None
    max_body_bytes: int
    request_timeout_s: float | None


def api_keys(
    given: Iterable[str], environment: MutableMapping[str, str] = os.environ
) -> tuple[str, ...]:
    """The keys of the options; without any, those of FD_API_KEY, separated by commas."""
    keys = [key for key in given if key]
    if not keys:
        keys = [key.strip() for key in environment.get(KEY_VARIABLE, "").split(",")]
    return tuple(key for key in keys if key)


class ApiKeyMiddleware:
    """Lets requests through that carry `Authorization: Bearer KEY` with one of the keys.

    Every key is compared in constant time whatever matched before, and as digests, so that neither
    content nor length of a key shows in how long the answer takes.
    """

    def __init__(self, app: Application, keys: Iterable[str]) -> None:
        self.app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            return await self.app(scope, receive, send)
        digest = self._match(header_of(scope, b"authorization") or b"")
        if digest is None:
            record_of(scope).outcome = "refused"
            return await answer(
                send, 401, {"error": "Unauthorized"}, {b"www-authenticate": b"Bearer"}
            )
        record_of(scope).client = f"key-{digest.hex()[:8]}"
        await self.app(scope, receive, send)

    def _match(self, authorization: bytes) -> bytes | None:
        scheme, _, given = authorization.partition(b" ")
        digest = hashlib.sha256(given.strip()).digest()
        matches = [hmac.compare_digest(digest, own) for own in self._digests]
        return digest if scheme.lower() == b"bearer" and any(matches) else None


class BodyMiddleware:
    """Reads a request's body before anything else runs: bounded in bytes and in time.

    A body without a declared length is counted as it comes. The handler gets it in one message.
    """

    def __init__(self, app: Application, max_bytes: int, seconds: float | None) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = header_of(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self.max_bytes:
            return await self._refuse(scope, receive, send, 413, f"{int(declared)} bytes")
        body = None
        with anyio.move_on_after(self.seconds):
            body = await self._read(receive)
            if body is None:
                record_of(scope).outcome = "disconnected"
                return None
        if body is None:
            found = f"not complete after {self.seconds:g} s"
            return await self._refuse(scope, receive, send, 408, found)
        if len(body) > self.max_bytes:
            return await self._refuse(scope, receive, send, 413, f"at least {len(body)} bytes")
        await self.app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, or the beginning that is already too long; None: the client left."""
        body = bytearray()
        while len(body) <= self.max_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, status: int, found: str
    ) -> None:
        record_of(scope).outcome = "refused"
        message = f"request body: {found}; expected at most {self.max_bytes} bytes"
        body = error_body(message, ErrorType.INVALID_REQUEST, code=ErrorCode.INVALID_VALUE)

        async def send_then_linger(message: Message) -> None:
            # A client that is still writing when the connection closes never sees the answer.
            if message["type"] == "http.response.body" and status == 413:
                await send({**message, "more_body": True})
                with anyio.move_on_after(LINGER_SECONDS):
                    while (await receive()).get("more_body", False):
                        pass
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        # What is left of the body would be taken for the next request.
        await answer(send_then_linger, status, body, {b"connection": b"close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def install(app: Starlette, settings: LimitSettings) -> None:
    """Add the middleware of this module to an application; `app.state.gate` is its gate."""
    app.state.gate = Gate(settings.max_concurrency)
    # The last one added runs first.
    app.add_middleware(DeadlineMiddleware, seconds=settings.request_timeout_s)
    app.add_middleware(GateMiddleware, gate=app.state.gate)
    app.add_middleware(
        BodyMiddleware, max_bytes=settings.max_body_bytes, seconds=settings.request_timeout_s
    )
    keys = api_keys(settings.api_keys)
    if keys:
        app.add_middleware(ApiKeyMiddleware, keys=keys)
