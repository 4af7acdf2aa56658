"""A small application behind the real middleware, connection class and uvicorn, for tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.engine.control import EngineStats
from paddle_ernie.serve.middleware import access_log, limits, metrics
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.processes import run
from paddle_ernie.serve.processes.shutdown import SideServer
from paddle_ernie.serve.types import GenerateRequest, RequestOutput, SamplingParams


@dataclass
class Engine:
    """Stands where the worker stands: counts who is inside and who was let go."""

    stats: EngineStats = field(
        default_factory=lambda: EngineStats(total_pages=10, free_pages=4, running=3, version=7)
    )
    inside: int = 0
    cancelled: int = 0

    @contextlib.contextmanager
    def slot(self):
        self.inside += 1
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1


def small_app(settings: ServerSettings, engine: Engine) -> Starlette:
    """/v1/completions: `tokens` pieces of `size` bytes, `pause` seconds apart, streamed or not."""

    async def completions(request: Request) -> Response:
        body = await request.json()
        record = record_of(request.scope)
        sampling = SamplingParams(max_tokens=body["tokens"])
        record.begin(GenerateRequest("r", (1, 2, 3), sampling))

        async def pieces() -> AsyncIterator[str]:
            with engine.slot():
                for i in range(body["tokens"]):
                    await asyncio.sleep(body.get("pause", 0))
                    record.output(RequestOutput("r", token_ids=(i,)))
                    yield f"data: {i}{'x' * body.get('size', 0)}\n\n"

        if body.get("stream"):
            return StreamingResponse(pieces(), media_type="text/event-stream")
        return JSONResponse([piece async for piece in pieces()])

    async def echo(request: Request) -> Response:
        body = await request.body()
        return JSONResponse({"bytes": len(body), "client": record_of(request.scope).client})

    async def health(_request: Request) -> Response:
        return Response()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/echo", echo, methods=["POST"]),
        Route("/health", health),
    ]
    app = Starlette(routes=routes)
    metrics.install(app, engine, 8)
    limits.install(app, settings)
    access_log.install(app, settings.access_log)
    return app


@dataclass
class Running:
    """A server that is listening."""

    engine: Engine
    app: Starlette
    client: httpx.AsyncClient
    port: int
    log: Path

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.asynccontextmanager
async def running(tmp_path: Path, **options) -> AsyncIterator[Running]:
    """The application on a free port of the loopback, within this event loop."""
    settings = ServerSettings(access_log=tmp_path / "access.jsonl", **options)
    engine = Engine()
    app = small_app(settings, engine)
    async with listening(app, settings) as (client, port):
        yield Running(engine, app, client, port, settings.access_log)


@contextlib.asynccontextmanager
async def listening(
    app: Starlette, settings: ServerSettings
) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """Any application on a free port; (a client of it, the port)."""
    listener = run.bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = SideServer(run.server_config(app, settings))
    task = asyncio.ensure_future(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client, port
    finally:
        server.should_exit = server.force_exit = True
        await task


async def until(condition, seconds: float = 10.0) -> None:
    """Wait for something to become true; an AssertionError if it does not."""
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, "waited in vain"
        await asyncio.sleep(0.01)
