"""Runs a server until a signal ends it: one process, or a front and N engine processes.

    serve --+-- workers = 1: engine in a thread, application, uvicorn
            +-- workers = N: front.create_front over a fleet of N such processes on unix sockets

Called by tools/serve.py. The address is taken before a model is loaded, so that a port in use is
known at once; and no address but loopback is taken without an API key.
"""

import asyncio
import dataclasses
import functools
import ipaddress
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from rich.console import Console
from starlette.applications import Starlette

from paddle_ernie.serve.api.errors import ErrorType, error_body
from paddle_ernie.serve.api.settings import RouteStoreKind, ServerSettings
from paddle_ernie.serve.middleware import access_log, limits
from paddle_ernie.serve.middleware.asgi import Application, Receive, Scope, Send, answer
from paddle_ernie.serve.middleware.connection import connection_class
from paddle_ernie.serve.middleware.gate import Gate
from paddle_ernie.serve.processes.broadcast import abort_all
from paddle_ernie.serve.processes.fleet import Fleet, forget_late_wakeups
from paddle_ernie.serve.processes.front import create_front
from paddle_ernie.serve.processes.shutdown import DrainingServer, SideServer
from paddle_ernie.serve.route_store import clear_store
from paddle_ernie.utils.cli import run_main
from paddle_ernie.utils.errors import ExitCode, InputError
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads

if TYPE_CHECKING:
    from paddle_ernie.serve.engine.worker import EngineWorker

logger = logging.getLogger(__name__)

WorkerFactory = Callable[[], "EngineWorker"]
"""Makes the engine of a process; sent to processes, so a partial of `flags.make_worker`."""

BACKLOG = 4096  # clients that connect at the same moment
KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep idle connections (60 s)
CLOSE_SECONDS = 5  # for connections to take leave once nothing runs
FRONT_EXTRA_SECONDS = 5.0  # the process's own timeout, which knows more, comes first


def serve(make_worker: WorkerFactory, settings: ServerSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises what the user can mend at start-up."""
    settings = dataclasses.replace(settings, api_keys=limits.api_keys(settings.api_keys))
    check_binding(settings)
    sockets = [bind(settings.host, settings.port)]
    side = _metrics_port(settings)
    metrics = [] if side is None else [bind(settings.host, side)]
    replay = settings.routing_replay
    if replay is not None and replay.store is RouteStoreKind.LOCAL:
        clear_store(replay.local_store_dir)
    main = _serve_engine if settings.workers == 1 else _serve_fleet
    uvloop.run(main(make_worker, settings, sockets, metrics))
    return ExitCode.DONE


def check_binding(settings: ServerSettings) -> None:
    """Refuse to be open to a network without a key."""
    if settings.api_keys or settings.allow_open or is_loopback(settings.host):
        return
    raise InputError(
        f"host is {settings.host}: everybody who reaches this machine could use the server and "
        "change its weights. Give --api-key (or FD_API_KEY), or --host 127.0.0.1, or "
        "--allow-open if the network itself keeps strangers out"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket of that address, not yet listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"{host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error
    return listener


async def _serve_engine(
    make_worker: WorkerFactory,
    settings: ServerSettings,
    sockets: list[socket.socket],
    metrics: list[socket.socket],
    *,
    behind_front: bool = False,
) -> None:
    from paddle_ernie.serve.api.app import create_app  # imports Paddle

    worker = make_worker()
    await worker.start()
    try:
        app = create_app(worker, settings)
        abort = functools.partial(worker.abort, None)
        await _listen(app, settings, sockets, metrics, abort, behind_front=behind_front)
    finally:
        await worker.close(0.0)


async def _serve_fleet(
    make_worker: WorkerFactory,
    settings: ServerSettings,
    sockets: list[socket.socket],
    metrics: list[socket.socket],
) -> None:
    asyncio.get_running_loop().set_exception_handler(forget_late_wakeups)
    fleet = Fleet(functools.partial(_engine_process, make_worker, settings), settings.workers)
    await fleet.start()
    try:
        app = create_front(fleet, prefix_affinity=settings.prefix_affinity)
        limits.install(app, _front_settings(settings))
        access_log.install(app, settings.access_log)
        abort = functools.partial(abort_all, fleet)
        await _listen(app, settings, sockets, metrics, abort)
    finally:
        await fleet.stop()


async def _listen(
    app: Starlette,
    settings: ServerSettings,
    sockets: list[socket.socket],
    metrics: list[socket.socket],
    abort: Callable[[], Awaitable[object]],
    *,
    behind_front: bool = False,
) -> None:
    gate: Gate = app.state.gate
    config = server_config(app, settings, behind_front=behind_front)
    server = DrainingServer(config, gate, drain_s=settings.graceful_shutdown_s, abort=abort)
    side = SideServer(server_config(_only_probes(app), settings, behind_front=behind_front))
    beside: list[Coroutine[Any, Any, None]] = [side.serve(metrics)] if metrics else []
    tasks = [asyncio.ensure_future(task) for task in beside]
    if not behind_front:
        host, port = sockets[0].getsockname()[:2]
        logger.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    try:
        await server.serve(sockets)
    finally:
        side.should_exit = True
        await asyncio.gather(*tasks)


def server_config(
    app: Application, settings: ServerSettings, *, behind_front: bool = False
) -> uvicorn.Config:
    """How uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=connection_class(settings.stream_write_timeout_s),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        # Only the front reaches a process's socket, and it says who asks.
        proxy_headers=behind_front,
        forwarded_allow_ips="*" if behind_front else None,
    )


def _only_probes(app: Application) -> Application:
    """What answers on the metrics port: the same figures, and nothing that costs."""

    async def probes(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in limits.OPEN_PATHS:
            body = error_body("only /metrics and /health here", ErrorType.INVALID_REQUEST)
            return await answer(send, 404, body)
        if scope["type"] == "http":
            await app(scope, receive, send)

    return probes


def _metrics_port(settings: ServerSettings) -> int | None:
    port = settings.metrics_port
    return None if port is None or port == settings.port else port


def _front_settings(settings: ServerSettings) -> ServerSettings:
    seconds = settings.request_timeout_s
    if seconds is None:
        return settings
    return dataclasses.replace(settings, request_timeout_s=seconds + FRONT_EXTRA_SECONDS)


def _engine_process(make_worker: WorkerFactory, settings: ServerSettings, path: str) -> None:
    """The main function of each engine process: a server on a unix socket."""
    configure_logging(Console(stderr=True))
    configure_threads(max(1, configure_threads(None) // settings.workers))
    # The front has looked at keys and counts requests.
    own = dataclasses.replace(settings, workers=1, api_keys=(), max_concurrency=sys.maxsize)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    run = functools.partial(_serve_engine, make_worker, own, [listener], [], behind_front=True)
    sys.exit(run_main(lambda: uvloop.run(run())))
