"""How a server ends: SIGTERM or SIGINT closes the gate, waits, aborts what is left, then stops.

first signal:  new requests get 503 -> wait for the running ones, `drain_s` at most
               -> abort the rest, whose clients are told so -> close connections
second signal: stop at once
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from paddle_ernie.serve.middleware.gate import Gate
from paddle_ernie.utils.errors import PaddleErnieError

logger = logging.getLogger(__name__)

ABORT_SECONDS = 5.0  # a sequence ends within one step of the engine; its last bytes go out


class DrainingServer(uvicorn.Server):
    """A uvicorn server with that way of ending."""

    def __init__(
        self,
        config: uvicorn.Config,
        gate: Gate,
        *,
        drain_s: float,
        abort: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(config)
        self._gate = gate
        self._drain_s = drain_s
        self._abort = abort
        self._ending: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came; uvicorn installed this as its handler, which asyncio lets run safely."""
        if self._ending is not None:
            self.force_exit = self.should_exit = True
            return
        name = signal.Signals(sig).name
        asyncio.get_running_loop().call_soon_threadsafe(self.begin_shutdown, name)

    def begin_shutdown(self, reason: str) -> None:
        """Refuse new requests and end once the running ones have."""
        if self._ending is None:
            self._gate.close()
            if self._gate.running:
                logger.info(
                    "%s: %d requests may go on for %g s, new ones are refused; "
                    "again to stop at once",
                    reason, self._gate.running, self._drain_s,
                )  # fmt: skip
            self._ending = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        if not await self._gate.wait_empty(self._drain_s):
            logger.warning("%d requests still run and are aborted", self._gate.running)
            try:
                await asyncio.wait_for(self._abort(), ABORT_SECONDS)
            except (PaddleErnieError, asyncio.TimeoutError) as error:
                logger.warning("the engine does not abort them: %r", error)
            await self._gate.wait_empty(ABORT_SECONDS)
        self.should_exit = True


class SideServer(uvicorn.Server):
    """A second server of the same process: signals are the first one's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing."""
        yield
