"""SIGINT and SIGTERM: the first asks the run to save and stop, the second ends it at once."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paddle_ernie.utils.errors import ExitCode
from paddle_ernie.utils.options import StopFlag

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
FIRST = b"\n%s: stopping after the current step, once it is saved; again to stop at once\n"
SECOND = b"\nstopped at once; the newest checkpoint stands\n"


@contextmanager
def stop_on_signals(stop: StopFlag) -> Iterator[None]:
    """While open, signals set `stop`; the previous handlers come back on leaving.

    Must be entered on the main thread, as Python runs signal handlers there, and after Paddle was
    imported: the import puts Paddle's own handler of SIGTERM, which aborts, over any other. Worker
    processes that are forked meanwhile leave Ctrl-C to their parent and end on SIGTERM.
    """
    owner = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:
            return _handle_in_worker(number)
        name = signal.Signals(number).name
        # os.write, because a handler may interrupt a buffered write of the same stream.
        if stop:
            os.write(2, SECOND)
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(ExitCode.INTERRUPTED)
        stop.set(name)
        os.write(2, FIRST % name.encode())

    previous = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _handle_in_worker(number: int) -> None:
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
