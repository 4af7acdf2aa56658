"""How far a long job is: a bar on a terminal, a log line every few seconds elsewhere.

Called by the data package (bytes read, bytes tokenised) and by training (steps, with loss and
tokens/s beside the bar). It never prints to anything but the console it was given, and costs
microseconds per call: redrawing happens in rich's own thread, at most ten times a second.

    with progress.task("tokenise", total=31_500_000, unit="B") as task:
        task.advance(65_536)

    with progress.task("train", total=800, unit="step") as task:
        task.advance(1, loss=3.21, tokens_per_s=2140)

    train ━━━━━━━━━━━━━━━━╸━━━━━━━ 120/800 steps  loss 3.21  2,140 tokens/s  0:00:45 left
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.progress import Task as RichTask
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

logger = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 10.0
"""Time between log lines: rare enough for a log file, often enough to see that the job lives."""

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 8, 40
GAPS = 3  # one between the columns, and the last one of a line, where a cursor may stand

Field = float | int | str


class Task:
    """One job that is being counted. Made by `Progress.task`."""

    def __init__(
        self,
        description: str,
        total: float | None,
        unit: str,
        clock: Callable[[], float],
        changed: "Callable[[Task], None]",
    ) -> None:
        self.description = description
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.fields: dict[str, Field] = {}
        self._skipped = 0.0
        self._clock = clock
        self._started = clock()
        self._changed = changed

    def advance(self, amount: float = 1, **fields: Field) -> None:
        """Count `amount` more units; `fields` are shown beside the bar until they change."""
        self.done += amount
        # A new dict, because the drawing thread may be iterating over the old one.
        self.fields = {**self.fields, **fields}
        self._changed(self)

    def skip(self, amount: float) -> None:
        """Count units that an earlier run did: part of the total, not of the speed."""
        self._skipped += amount
        self.advance(amount)

    @property
    def elapsed(self) -> float:
        """Seconds since the task began."""
        return self._clock() - self._started

    @property
    def speed(self) -> float:
        """Units per second since the task began."""
        return (self.done - self._skipped) / max(self.elapsed, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Time to the total at the present speed; None while unknown."""
        if self.total is None or self.speed <= 0:
            return None
        return max(self.total - self.done, 0.0) / self.speed

    def __str__(self) -> str:
        """What stands beside the bar, and in the log line."""
        parts = [format_count(self.done, self.total, self.unit)]
        parts += [_format_field(name, value) for name, value in self.fields.items()]
        if not any("_per_" in name for name in self.fields):
            parts.append(format_speed(self.speed, self.unit))
        if (left := self.seconds_left) is not None:
            parts.append(f"{format_seconds(left)} left")
        return "  ".join(parts)


class Progress:
    """Opens tasks on a console. Without a console, or without a terminal, it only logs."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        interval_seconds: float = LOG_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._interval = interval_seconds
        self._clock = clock
        self._bars: RichProgress | None = None
        self._open = 0

    @contextmanager
    def task(self, description: str, *, total: float | None, unit: str = "") -> Iterator[Task]:
        """Count one job. Tasks may be nested: their bars are drawn one below the other."""
        draws = self._console is not None and self._console.is_terminal
        follow = self._draw if draws else self._log
        with follow(description, total) as changed:
            yield Task(description, total, unit, self._clock, changed)

    @contextmanager
    def _log(self, description: str, total: float | None) -> Iterator[Callable[[Task], None]]:
        due = self._clock() + self._interval

        def changed(task: Task) -> None:
            nonlocal due
            if (now := self._clock()) >= due:
                due = now + self._interval
                logger.info("%s: %s", description, str(task))  # now, before it changes

        yield changed

    @contextmanager
    def _draw(self, description: str, total: float | None) -> Iterator[Callable[[Task], None]]:
        if self._bars is None:
            name = TextColumn("{task.description}", table_column=Column(no_wrap=True))
            columns = (name, _Bar(self._console), _Beside(table_column=Column(no_wrap=True)))
            self._bars = RichProgress(*columns, console=self._console, transient=True)
            self._bars.start()
        self._open += 1
        bars, bar = self._bars, self._bars.add_task(description, total=total, beside="")
        try:
            yield lambda task: bars.update(bar, completed=task.done, beside=task)
        finally:
            bars.refresh()
            bars.remove_task(bar)
            self._open -= 1
            if not self._open:
                bars.stop()
                self._bars = None


class _Bar(BarColumn):
    """A bar that gives way where the terminal is narrow, so that the line stays one line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: RichTask) -> ProgressBar:
        """The bar in what the texts on either side leave of the line."""
        bar = super().render(task)
        taken = len(task.description) + len(str(task.fields["beside"])) + GAPS
        bar.width = max(MIN_BAR_WIDTH, min(MAX_BAR_WIDTH, self._console.width - taken))
        return bar


class _Beside(ProgressColumn):
    """The text to the right of the bar."""

    def render(self, task: RichTask) -> Text:
        """Counts, fields, speed, time left."""
        return Text(str(task.fields["beside"]))


def format_count(done: float, total: float | None, unit: str) -> str:
    """`21.4/31.5 MB` for bytes, `120/800 steps` for anything else."""
    if unit == "B":
        scale, name = _byte_scale(total if total is not None else done)
        shown = f"{done / scale:.1f}"
        return f"{shown}/{total / scale:.1f} {name}" if total is not None else f"{shown} {name}"
    shown = f"{done:,.0f}" if total is None else f"{done:,.0f}/{total:,.0f}"
    return f"{shown} {_plural(unit)}".rstrip()


def format_speed(speed: float, unit: str) -> str:
    """`4.1 MB/s` for bytes, `2.50 steps/s` for anything else."""
    if unit == "B":
        scale, name = _byte_scale(speed)
        return f"{speed / scale:.1f} {name}/s"
    return f"{_short(speed)} {_plural(unit)}/s" if unit else f"{_short(speed)}/s"


def format_seconds(seconds: float) -> str:
    """Hours, minutes and seconds as `0:02:05`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _byte_scale(size: float) -> tuple[float, str]:
    for scale, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= scale:
            return scale, name
    return 1.0, "B"


def _plural(unit: str) -> str:
    if not unit:
        return ""
    return f"{unit}es" if unit.endswith("s") else f"{unit}s"


def _format_field(name: str, value: Field) -> str:
    """`loss 3.21`; `2,140 tokens/s` for a name such as `tokens_per_s`."""
    if "_per_" in name:
        return f"{_short(value)} {name.replace('_per_', '/')}"
    return f"{name} {_short(value)}"


def _short(value: Field) -> str:
    """Three significant digits for small numbers, thousands separators for large ones."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:.3g}"
