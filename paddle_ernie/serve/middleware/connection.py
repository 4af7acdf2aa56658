"""An HTTP connection that gives up on clients which do not read, or never ask.

uvicorn's HTTP/1.1 protocol plus two timers. The transport keeps nothing back: as soon as the kernel
takes no more bytes, the response waits and the first timer runs. A client that reads nothing until
it expires loses its connection; the handler then sees a disconnect and the engine's slot is free.
Other connections are not concerned: each waits for its own client only.
"""

import asyncio
import logging

from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)


class PatientProtocol(H11Protocol):
    """A connection; `connection_class` sets its two limits."""

    write_timeout_s = 60.0
    first_request_timeout_s = 60.0
    _stalled: asyncio.TimerHandle | None = None
    _unread = 0
    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._silent = self.loop.call_later(self.first_request_timeout_s, self._drop_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whichever side."""
        for timer in (self._stalled, self._silent):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The kernel's buffer of this connection is full."""
        super().pause_writing()
        if self._stalled is None:
            self._watch_reading()

    def resume_writing(self) -> None:
        """The client has read everything that was waiting."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch_reading(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.write_timeout_s, self._check_reading)

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:
            return self._watch_reading()  # a large response over a slow line
        logger.warning(
            "%s read nothing for %g s; its connection is dropped",
            self.client[0] if self.client else "a client",
            self.write_timeout_s,
        )
        self.transport.abort()

    def _drop_silent(self) -> None:
        if self.scope is None:
            self.transport.abort()


def connection_class(write_timeout_s: float) -> type[PatientProtocol]:
    """A protocol class, as uvicorn wants one, with these limits."""
    limits = {"write_timeout_s": write_timeout_s, "first_request_timeout_s": write_timeout_s}
    return type("LimitedProtocol", (PatientProtocol,), limits)
