"""The front of `--workers N`: one HTTP server that passes requests on to N engine processes.

    client --> limits --> Front --> least loaded process, or the one that knows the prompt's begin
                            |-----> control calls: all processes, one answer
                            |-----> /metrics: all processes, added up
                            +-----> /health: 200 while one process serves

Bodies go through as bytes in both directions; a stream's chunks as they come. When the client
leaves, the connection to the process is closed, which cancels the request there.
"""

import asyncio
import hashlib
import json
from typing import Any

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from paddle_ernie.serve.api.errors import ErrorCode, ErrorType, error_body
from paddle_ernie.serve.middleware.access_log import REQUEST_ID_HEADER, record_of
from paddle_ernie.serve.middleware.asgi import (
    EVENT_STREAM,
    Receive,
    Scope,
    Send,
    answer,
    end_event_stream,
    generates,
)
from paddle_ernie.serve.middleware.metrics import RequestMetrics, registry_of, text_of
from paddle_ernie.serve.processes.broadcast import CONTROL_PATHS, broadcast
from paddle_ernie.serve.processes.fleet import Fleet, Member
from paddle_ernie.serve.processes.metrics_merge import merge

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
     b"proxy-authenticate", b"proxy-authorization"}
)  # fmt: skip
NOT_FORWARDED = HOP_BY_HOP | {
    b"host", b"content-length", b"authorization", b"expect", b"x-forwarded-for",
    b"x-forwarded-proto", REQUEST_ID_HEADER,
}  # fmt: skip
NOT_RETURNED = HOP_BY_HOP | {b"date", b"server"}
RETRY = {b"retry-after": b"1"}
AFFINITY_CHARS = 512  # system prompt and first turn; what follows grows from turn to turn
AFFINITY_MAX_BYTES = 1 << 20  # parsing more than that would hold up other streams
AFFINITY_SLACK = 8  # requests more than the least loaded process has: then a cache hit is too dear
METRICS_SECONDS = 5.0


class Front:
    """The ASGI application that passes requests on."""

    def __init__(self, fleet: Fleet, *, prefix_affinity: bool) -> None:
        self.fleet = fleet
        self.prefix_affinity = prefix_affinity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        body = await Request(scope, receive).body()
        if not self.fleet.ready:
            return await answer(send, 503, _server_error("No engine process is ready"), RETRY)
        if scope["path"] in CONTROL_PATHS:
            status, reply = await broadcast(self.fleet, scope, body)
            return await answer(send, status, reply)
        member = self.choose(body if generates(scope) else b"")
        member.in_flight += 1
        try:
            await self._pass_on(member, scope, body, send)
        finally:
            member.in_flight -= 1

    def choose(self, body: bytes) -> Member:
        """The process for a request."""
        ready = self.fleet.ready
        least = min(ready, key=lambda member: member.in_flight)
        beginning = prompt_beginning(body) if self.prefix_affinity and body else None
        if beginning is None:
            return least
        # Rendezvous hashing: when a process is away, only its own prompts move.
        digest = hashlib.sha256(beginning).digest()
        home = max(
            ready, key=lambda member: hashlib.sha256(digest + bytes([member.index])).digest()
        )
        return home if home.in_flight <= least.in_flight + AFFINITY_SLACK else least

    async def _pass_on(self, member: Member, scope: Scope, body: bytes, send: Send) -> None:
        request = member.client.build_request(
            scope["method"], _url(scope), headers=_headers(scope), content=body
        )
        try:
            response = await member.client.send(request, stream=True)
        except httpx.TransportError as error:
            return await answer(send, 502, _lost(member, error))
        record = record_of(scope)
        record.forwarded = True
        headers = [pair for pair in response.headers.raw if pair[0].lower() not in NOT_RETURNED]
        try:
            start = {"status": response.status_code, "headers": headers}
            await send({"type": "http.response.start", **start})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except httpx.TransportError as error:
            # The process is gone and wrote no line of the log: this one does.
            record.forwarded, record.outcome = False, "error"
            is_stream = response.headers.get("content-type", "").encode().startswith(EVENT_STREAM)
            if is_stream:
                await end_event_stream(send, _lost(member, error))
        finally:
            await response.aclose()


def create_front(fleet: Fleet, *, prefix_affinity: bool = False) -> Starlette:
    """The application, without limits; the fleet is started and stopped by whoever runs it."""
    registry = registry_of(None, None)

    async def health(_request: Request) -> Response:
        return Response(status_code=200 if fleet.ready else 503)

    async def metrics(_request: Request) -> Response:
        return Response(await _metrics(fleet, registry), media_type=CONTENT_TYPE_LATEST)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ping", health, methods=["GET", "POST"]),
            Route("/metrics", metrics),
            Mount("/", Front(fleet, prefix_affinity=prefix_affinity)),
        ]
    )
    app.state.record_sinks = [RequestMetrics(registry)]
    return app


def prompt_beginning(body: bytes) -> bytes | None:
    """What prompts must share to profit from one process's prefix cache; None: nothing usable."""
    if len(body) > AFFINITY_MAX_BYTES:
        return None
    try:
        request = json.loads(body)
    except ValueError:
        return None
    if not isinstance(request, dict):
        return None
    for name in ("prompt_token_ids", "messages", "prompt"):
        if request.get(name):
            return json.dumps(request[name])[:AFFINITY_CHARS].encode()
    return None


async def _metrics(fleet: Fleet, registry: CollectorRegistry) -> str:
    async def scrape(member: Member) -> str:
        try:
            response = await member.client.get("/metrics", timeout=METRICS_SECONDS)
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    texts = await asyncio.gather(*(scrape(member) for member in fleet.ready))
    gauges = (
        "# HELP fastdeploy:engine_processes_ready Engine processes that take requests\n"
        "# TYPE fastdeploy:engine_processes_ready gauge\n"
        f"fastdeploy:engine_processes_ready {len(fleet.ready)}\n"
        "# HELP fastdeploy:engine_process_restarts_total Restarts of engine processes\n"
        "# TYPE fastdeploy:engine_process_restarts_total counter\n"
        f"fastdeploy:engine_process_restarts_total {sum(m.restarts for m in fleet.members)}\n"
    )
    return merge([*texts, text_of(registry), gauges])


def _url(scope: Scope) -> str:
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string") or b""
    return (path + b"?" + query if query else path).decode("latin-1")


def _headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    record = record_of(scope)
    kept = [pair for pair in scope["headers"] if pair[0].lower() not in NOT_FORWARDED]
    return [
        *kept,
        (REQUEST_ID_HEADER, record.request_id.encode("latin-1")),
        (b"x-forwarded-for", record.client.encode("latin-1")),
    ]


def _lost(member: Member, error: Exception) -> dict[str, Any]:
    name = type(error).__name__
    return _server_error(f"engine process {member.index} was lost ({name}); send the request again")


def _server_error(message: str) -> dict[str, Any]:
    return error_body(message, ErrorType.SERVER, code=ErrorCode.CONNECTION_ERROR)
