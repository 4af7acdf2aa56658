"""Progress on a terminal and in a log, with a clock of the test's own."""

import io
import logging
import re

import pytest
from rich.console import Console

from paddle_ernie.monitor.progress import Progress, format_count, format_seconds, format_speed


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def test_log_lines_come_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with (
        caplog.at_level(logging.INFO, "paddle_ernie.monitor.progress"),
        Progress(interval_seconds=10, clock=clock).task("train", total=100, unit="step") as task,
    ):
        for _ in range(25):
            clock.now += 1
            task.advance(2, loss=3.14159, tokens_per_s=2140.4)
    assert [record.getMessage() for record in caplog.records] == [
        "train: 20/100 steps  loss 3.14  2,140 tokens/s  0:00:40 left",
        "train: 40/100 steps  loss 3.14  2,140 tokens/s  0:00:30 left",
    ]


def test_a_file_gets_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress(console).task("read", total=10, unit="B") as task:
        task.advance(10)
    assert console.file.getvalue() == ""
    assert not caplog.records


def test_bar_shows_numbers_and_fields() -> None:
    console, clock = terminal(), Clock()
    progress = Progress(console, clock=clock)
    with progress.task("tokenise", total=31_500_000, unit="B") as task:
        clock.now += 5
        task.advance(21_000_000, loss=2.5)
    drawn = console.file.getvalue()
    assert "tokenise" in drawn
    assert re.search(r"21\.0/31\.5 MB +loss 2\.5 +4\.2 MB/s +0:00:0[23] left", drawn)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_bar_fills_one_line_and_no_more(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with Progress(console).task("train", total=500, unit="step") as task:
        task.advance(50, loss=6.4444, tokens_per_s=12_017.0)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", console.file.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", drawn) if "500 steps" in line]
    assert lines and all(len(line) <= width for line in lines)
    last = lines[-1]
    bar, text = last.removeprefix("train").split(" 50/500 steps")
    assert text == "  loss 6.44  12,017 tokens/s  0:00:00 left"
    assert len(bar) - 1 == {60: -1, 80: 18, 200: 40}[width], "it gives way to the text"


def test_tasks_nest_and_the_display_ends_with_the_last() -> None:
    console = terminal()
    progress = Progress(console)
    with progress.task("outer", total=2) as outer:
        with progress.task("inner", total=None, unit="B") as inner:
            inner.advance(5)
        outer.advance(2)
    with progress.task("next", total=1) as task:
        task.advance(1)
    drawn = console.file.getvalue()
    assert {"outer", "inner", "next"} <= set(re.findall(r"[a-z]+", drawn))
    shown, hidden = drawn.count("\x1b[?25h"), drawn.count("\x1b[?25l")
    assert shown == hidden == 2, "the cursor is hidden and shown again once per display"


def test_display_ends_when_the_job_fails() -> None:
    console = terminal()
    with pytest.raises(RuntimeError, match="job"), Progress(console).task("x", total=1):
        raise RuntimeError("job")
    assert console.file.getvalue().count("\x1b[?25h") == 1


def test_skipped_units_do_not_count_as_speed() -> None:
    clock = Clock()
    with Progress(clock=clock).task("train", total=100, unit="step") as task:
        task.skip(60)
        clock.now += 10
        task.advance(20)
    assert (task.done, task.speed, task.seconds_left) == (80, 2.0, 10.0)


def test_time_left_is_unknown_at_first_and_without_a_total() -> None:
    with Progress().task("x", total=10) as task:
        assert task.seconds_left is None
    with Progress().task("x", total=None) as task:
        task.advance(3)
        assert task.seconds_left is None
        assert str(task).startswith("3  ")


def test_formats() -> None:
    assert format_count(1_500, 2_000_000, "B") == "0.0/2.0 MB"
    assert format_count(999, None, "B") == "999.0 B"
    assert format_count(1234, None, "row") == "1,234 rows"
    assert format_speed(2_500_000, "B") == "2.5 MB/s"
    assert format_speed(0.1234, "step") == "0.123 steps/s"
    assert format_count(3, 4, "pass") == "3/4 passes"
    assert format_seconds(3725.4) == "1:02:05"
