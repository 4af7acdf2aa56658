"""What the server's middleware share: types of ASGI, which paths generate, answers of their own.

Middleware here are plain ASGI callables: nothing between a handler and the socket is buffered, and
a cancelled request is cancelled all the way down.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATION_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""They hold a slot of the engine while they run; control calls must pass when all are taken."""

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream"
END_OF_STREAM = b"data: [DONE]\n\n"


def generates(scope: Scope) -> bool:
    """Whether a request asks for tokens."""
    return scope["type"] == "http" and scope["path"] in GENERATION_PATHS


def header(scope_or_message: MutableMapping[str, Any], name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    headers = scope_or_message.get("headers") or ()
    return next((value for key, value in headers if key.lower() == name), None)


async def answer(
    send: Send, status: int, body: dict[str, Any], headers: dict[bytes, bytes] | None = None
) -> None:
    """A complete JSON response."""
    content = json.dumps(body).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", JSON),
                (b"content-length", str(len(content)).encode()),
                *(headers or {}).items(),
            ],
        }
    )
    await send({"type": "http.response.body", "body": content})


async def end_event_stream(send: Send, body: dict[str, Any]) -> None:
    """An error inside a stream that has begun, where the status can no longer say it."""
    event = b"data: " + json.dumps(body).encode() + b"\n\n" + END_OF_STREAM
    await send({"type": "http.response.body", "body": event})
