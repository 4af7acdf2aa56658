"""The engine processes behind one front: started, watched, restarted, controlled together.

    Fleet.start -> one supervisor task per process
        spawn -> /health answers -> catch up (weights, pause) -> ready --+
          ^                                                              | ends, or stops answering
          +------------- back-off, kill what is left of it <-------------+

A process that is not ready gets no requests. One that was restarted has the weights it was started
with; before it is ready again it gets the last update that succeeded, and is paused if the others
are. Processes end with their parent, also when it is killed (`end_with_parent`).
"""

import asyncio
import logging
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import httpx

from paddle_ernie.serve.processes.fleet_state import PAUSE, RESUME, SLEEP, UPDATE, ControlState
from paddle_ernie.utils.errors import PaddleErnieError

logger = logging.getLogger(__name__)

START_SECONDS = 600.0  # a large model is read, checked and packed, the operators compiled
POLL_SECONDS = 0.1
HEALTH_SECONDS = 5.0  # between two looks at a process that seems well
HEALTH_TIMEOUT_SECONDS = 20.0  # the event loop answers, whatever the engine's thread does
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 0.5, 30.0
WELL_SECONDS = 60.0  # having lived so long, the next failure is a first one again
STOP_SECONDS = 10.0

Target = Callable[[str], None]
"""What a process runs: a server on the unix socket of that path."""


class FleetError(PaddleErnieError):
    """An engine process could not be started."""


@dataclass
class Member:
    """One engine process and the way to it."""

    index: int
    socket: Path
    client: httpx.AsyncClient
    process: Any = None
    ready: bool = False
    in_flight: int = 0
    restarts: int = -1
    """Starts after the first."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive()


@dataclass
class Fleet:
    """`size` processes running `target`."""

    target: Target
    size: int
    state: ControlState = field(default_factory=ControlState)
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        # In a folder only this user can enter: the sockets ask for no key.
        self._folder = Path(tempfile.mkdtemp(prefix="ernie-"))
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.lock = asyncio.Lock()
        """Held while control calls go out or a process catches up with them."""

    @property
    def ready(self) -> list[Member]:
        """Processes that take requests."""
        return [member for member in self.members if member.ready]

    async def start(self) -> None:
        """Start all; return when all are ready. Raises FleetError if one ends instead."""
        self.members = [self._member(index) for index in range(self.size)]
        for member in self.members:
            self._spawn(member)
        try:
            await asyncio.gather(*(self._wait_healthy(member) for member in self.members))
        except BaseException:
            await self.stop()
            raise
        for member in self.members:
            member.ready = True
            self._tasks.append(asyncio.ensure_future(self._supervise(member)))

    async def stop(self) -> None:
        """End all processes: SIGTERM, and after a while SIGKILL."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members:
            if member.alive:
                member.process.terminate()
        await asyncio.gather(*(self._end(member, STOP_SECONDS) for member in self.members))
        for member in self.members:
            await member.client.aclose()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _member(self, index: int) -> Member:
        path = self._folder / f"{index}.sock"
        transport = httpx.AsyncHTTPTransport(
            uds=str(path), limits=httpx.Limits(max_connections=None, max_keepalive_connections=64)
        )
        # Streams last as long as they last; a process that hangs is found by its health.
        timeout = httpx.Timeout(None, connect=HEALTH_TIMEOUT_SECONDS)
        client = httpx.AsyncClient(
            transport=transport, base_url="http://engine", timeout=timeout, trust_env=False
        )
        return Member(index, path, client)

    def _spawn(self, member: Member) -> None:
        member.socket.unlink(missing_ok=True)
        # Not forked: a copy of a process with threads and an event loop is not sound.
        context = multiprocessing.get_context("spawn")
        member.process = context.Process(
            target=_run, args=(self.target, str(member.socket)), name=f"engine-{member.index}",
            daemon=True,
        )  # fmt: skip
        member.process.start()
        member.restarts += 1

    async def _supervise(self, member: Member) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            reason = await self._wait_failed(member)
            member.ready = False
            if time.monotonic() - began > WELL_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            while not member.ready:
                logger.error(
                    "engine process %d %s; starting it again in %g s", member.index, reason, backoff
                )
                await self._end(member, 0)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LAST_BACKOFF_SECONDS)
                try:
                    self._spawn(member)
                    await self._wait_healthy(member)
                    await self._catch_up(member)
                except (FleetError, httpx.HTTPError, OSError) as error:
                    reason = f"did not start: {error}"

    async def _wait_healthy(self, member: Member) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not member.alive:
                raise FleetError(
                    f"engine process {member.index} ended with exit code "
                    f"{member.process.exitcode} before it served; its own message stands above"
                )
            if await self._healthy(member):
                return
            await asyncio.sleep(POLL_SECONDS)
        raise FleetError(f"engine process {member.index} did not serve within {START_SECONDS:g} s")

    async def _healthy(self, member: Member) -> bool:
        try:
            response = await member.client.get("/health", timeout=HEALTH_TIMEOUT_SECONDS)
        except httpx.HTTPError:
            return False
        # 304: its weights are put away, which is as it was told.
        return response.status_code in (200, 304)

    async def _wait_failed(self, member: Member) -> str:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(member.process.sentinel, ended.set)
        try:
            while True:
                try:
                    await asyncio.wait_for(ended.wait(), HEALTH_SECONDS)
                except asyncio.TimeoutError:
                    if not await self._healthy(member) and member.alive:
                        return "does not answer"
                else:
                    return "ended"
        finally:
            loop.remove_reader(member.process.sentinel)

    async def _catch_up(self, member: Member) -> None:
        """Bring a new process to where the others are, and let it take requests."""
        async with self.lock:
            state = self.state
            if state.update is not None:
                await self._tell(member, PAUSE)
                await self._tell(member, UPDATE, state.update)
                await self._tell(member, RESUME)
            if state.sleep_query is not None:
                await self._tell(member, f"{SLEEP}?{state.sleep_query}")
            if state.paused:
                await self._tell(member, PAUSE)
            member.ready = True
            logger.info("engine process %d serves again", member.index)

    async def _tell(self, member: Member, url: str, body: bytes = b"") -> None:
        headers = {"content-type": "application/json"} if body else {}
        response = await member.client.post(url, content=body, headers=headers)
        if response.status_code != 200:
            found = f"{response.status_code} {response.text[:200]}"
            raise FleetError(f"{url} of a restarted engine process answered {found}")

    async def _end(self, member: Member, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while member.alive and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS / 2)
        if member.alive:
            member.process.kill()
        if member.process is not None:
            await asyncio.to_thread(member.process.join)


def forget_late_wakeups(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The front's exception handler: one that is no fault is not reported.

    When a request is cancelled in the moment its unix socket becomes readable, anyio's callback
    finds its future cancelled already and raises; nobody waits for it any more.
    """
    late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (late and "set_result" in repr(context.get("handle"))):
        loop.default_exception_handler(context)


def end_with_parent() -> None:
    """End this process when the one that spawned it has ended, however that came."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for processes that multiprocessing started"

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)  # nobody is left to serve; a handler could hang

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _run(target: Target, path: str) -> None:
    end_with_parent()
    # Ctrl-C on a terminal goes to its whole process group: the front ends its processes itself.
    os.setpgrp()
    target(path)
