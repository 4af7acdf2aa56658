"""One line of JSON per request: who, what, how it ended, how many tokens, how long.

    {"time": "2026-03-01T12:00:00.123+00:00", "request_id": "7f...", "client": "10.0.0.3",
     "method": "POST", "path": "/v1/chat/completions", "status": 200, "outcome": "done",
     "prompt_tokens": 57, "cached_tokens": 32, "completion_tokens": 128,
     "time_to_first_token_s": 0.041, "duration_s": 1.93, "bytes": 20310}

`install` puts a `RequestRecord` on every request's scope. Handlers report what they generate to
`record_of(scope)`; when the request ends, however it ends, each of `app.state.record_sinks` gets
the record: the log, and the metrics. Neither keys nor prompts are in it.
"""

import json
import re
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

from starlette.applications import Starlette

from paddle_ernie.serve.middleware.asgi import Application, Message, Receive, Scope, Send, header
from paddle_ernie.serve.types import GenerateRequest, RequestOutput

REQUEST_ID_HEADER = b"x-request-id"
USABLE_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_PATHS = frozenset({"/health", "/ping", "/metrics"})
"""Probes come every few seconds and would bury the rest; they are logged when they fail."""


@dataclass
class RequestRecord:
    """What is known of one HTTP request, filled in while it runs. Times are of time.monotonic."""

    request_id: str
    method: str
    path: str
    client: str
    started_s: float
    status: int = 0
    """0 until a response began."""
    outcome: str = "done"
    """done, disconnected (the client left), timeout, refused, or error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    max_tokens: list[int] = field(default_factory=list)
    """Of each sequence that had a limit."""
    num_sequences: int = 0
    num_finished: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float = 0.0
    response_bytes: int = 0
    route_bytes: int = 0
    """Of the chosen experts of its tokens, as recorded."""
    forwarded: bool = False
    """Passed on to a worker process, which writes the line and counts."""

    def begin(self, request: GenerateRequest) -> None:
        """A sequence was handed to the engine."""
        self.num_sequences += 1
        self.prompt_tokens += len(request.prompt_ids)
        if request.sampling.max_tokens is not None:
            self.max_tokens.append(request.sampling.max_tokens)

    def output(self, output: RequestOutput) -> None:
        """Something came back from the engine."""
        if output.token_ids:
            self.last_token_s = time.monotonic()
            if self.first_token_s is None:
                self.first_token_s = self.last_token_s
            self.completion_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            self.num_finished += 1
            self.cached_tokens += output.cached_tokens
        if output.routes is not None:
            self.route_bytes += output.routes.nbytes

    def line(self) -> dict[str, object]:
        """The log line."""
        line: dict[str, object] = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "request_id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.outcome,
        }
        if self.num_sequences:
            line["prompt_tokens"] = self.prompt_tokens
            line["cached_tokens"] = self.cached_tokens
            line["completion_tokens"] = self.completion_tokens
        if self.first_token_s is not None:
            line["time_to_first_token_s"] = round(self.first_token_s - self.started_s, 6)
        line["duration_s"] = round(self.ended_s - self.started_s, 6)
        line["bytes"] = self.response_bytes
        return line


RecordSink = Callable[[RequestRecord], None]


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; of one that came past no middleware (a test's), a new one."""
    state = scope.setdefault("state", {})
    if "record" not in state:
        state["record"] = _new_record(scope)
    return state["record"]


class AccessLog:
    """Writes records as JSON lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def open(cls, path: Path | None) -> "AccessLog":
        """A file to append to; None: stderr."""
        if path is None:
            return cls(sys.stderr)
        # Line buffered: a line is whole in the file, also when several processes append.
        return cls(path.open("a", buffering=1, encoding="utf-8"))

    def __call__(self, record: RequestRecord) -> None:
        """Write one line."""
        quiet = record.path in QUIET_PATHS and record.status < 400 and record.outcome == "done"
        if quiet or record.forwarded:
            return
        self._stream.write(json.dumps(record.line(), ensure_ascii=False) + "\n")
        self._stream.flush()


class RecordMiddleware:
    """Makes a record per request, follows the response, hands the record to the sinks."""

    def __init__(self, app: Application, sinks: list[RecordSink]) -> None:
        self.app = app
        self.sinks = sinks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        record = record_of(scope)
        complete = False

        async def follow(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                answered = (REQUEST_ID_HEADER, record.request_id.encode("latin-1"))
                others = [pair for pair in message.get("headers", ()) if pair[0] != answered[0]]
                message = {**message, "headers": [*others, answered]}
            elif message["type"] == "http.response.body":
                record.response_bytes += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, follow)
        except BaseException:
            record.outcome = "error" if record.outcome == "done" else record.outcome
            if record.status == 0:
                record.status = 500
            raise
        else:
            if not complete and record.outcome == "done":
                record.outcome = "disconnected"
        finally:
            record.ended_s = time.monotonic()
            for sink in self.sinks:
                sink(record)


def install(app: Starlette, path: Path | None) -> None:
    """Add the outermost middleware, after all others, and the log; None: on stderr."""
    sinks: list[RecordSink] = getattr(app.state, "record_sinks", [])
    app.state.record_sinks = sinks
    sinks.append(AccessLog.open(path))
    app.add_middleware(RecordMiddleware, sinks=sinks)


def _new_record(scope: Scope) -> RequestRecord:
    given = header(scope, REQUEST_ID_HEADER)
    usable = given is not None and USABLE_REQUEST_ID.fullmatch(given)
    client = scope.get("client")
    return RequestRecord(
        request_id=given.decode() if given is not None and usable else uuid.uuid4().hex,
        method=scope.get("method", ""),
        path=scope.get("path", ""),
        client=client[0] if client else "local",
        started_s=time.monotonic(),
    )
