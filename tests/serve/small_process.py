"""What a fleet runs in tests of the front: the small application, with control calls, no model."""

import asyncio
import os
import socket
import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.processes import run
from paddle_ernie.serve.processes.shutdown import SideServer
from tests.serve.small_server import Engine, small_app


def target(folder: Path, path: str) -> None:
    """A server on the unix socket; its index is the socket's name."""
    asyncio.run(_serve(folder, Path(path)))


async def _serve(folder: Path, path: Path) -> None:
    if (folder / "broken").exists():
        raise SystemExit(7)
    settings = ServerSettings(access_log=folder / "engines.jsonl")
    app = small_app(settings, Engine())
    state = {"paused": False, "version": 0}

    async def who(request: Request) -> Response:
        return JSONResponse({"index": int(path.stem), "pid": os.getpid(), **state})

    async def pause(request: Request) -> Response:
        state["paused"] = True
        return JSONResponse({"status": "success", "result": {}})

    async def resume(request: Request) -> Response:
        state["paused"] = False
        return JSONResponse({"status": "success", "result": {}})

    async def is_paused(request: Request) -> Response:
        return JSONResponse({"status": "success", "result": {"is_paused": state["paused"]}})

    async def update(request: Request) -> Response:
        version = (await request.json())["version"]
        if int(path.stem) == 1 and version == "broken for one":
            return JSONResponse({"status": "error", "error_message": "no such version"}, 500)
        state["version"] = version
        return JSONResponse({"status": "success", "result": [{"version": version}]})

    async def die(request: Request) -> Response:
        os._exit(1)

    async def hang(request: Request) -> Response:
        time.sleep(1000)
        return Response()

    for name, endpoint in (
        ("who", who), ("v1/pause", pause), ("v1/resume", resume), ("v1/is_paused", is_paused),
        ("v1/update_weights", update), ("die", die), ("hang", hang),
    ):  # fmt: skip
        app.router.routes.append(Route(f"/{name}", endpoint, methods=["GET", "POST"]))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    await SideServer(run.server_config(app, settings, behind_front=True)).serve([listener])
