"""RunOptions: what the command line adds to a configuration, and the flag that stops a run."""

from dataclasses import dataclass, field
from threading import Event

from rich.console import Console


class StopFlag:
    """Set once by SIGINT or SIGTERM; loops look at it between steps, save and return."""

    def __init__(self) -> None:
        self._event = Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask for a stop. The first reason given is kept."""
        self.reason = self.reason or reason
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


@dataclass(frozen=True)
class RunOptions:
    """How to run a stage; never changes what is computed."""

    resume: str = "auto"
    """`auto`: go on from the newest whole checkpoint; `never`: start over; else a checkpoint."""
    stop: StopFlag = field(default_factory=StopFlag)
    console: Console = field(default_factory=Console)
    """Where tables, progress bars and samples are shown."""
