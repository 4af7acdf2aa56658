"""Log lines: plain in files, coloured on terminals, once each."""

import io
import logging
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from paddle_ernie.utils.logs import PACKAGE, configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The package's logger as it was."""
    logger = logging.getLogger(PACKAGE)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_plain_lines_outside_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging(Console(file=stream))
    logging.getLogger("paddle_ernie.data.x").info("read %d [bold]files[/bold]", 3)
    logging.getLogger("paddle_ernie.data.x").warning("a file is missing: %s", "x" * 200)
    first, second = stream.getvalue().splitlines()
    day_and_time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{day_and_time} read 3 \[bold\]files\[/bold\]", first)
    assert re.fullmatch(rf"{day_and_time} warning: a file is missing: x{{200}}", second)


def test_a_terminal_gets_colour_and_no_time() -> None:
    stream = io.StringIO()
    configure_logging(Console(file=stream, force_terminal=True, width=80))
    logging.getLogger("paddle_ernie.x").warning("careful")
    logging.getLogger("paddle_ernie.x").info("news")
    assert re.fullmatch(r"\x1b\[[0-9;]+mwarning: \x1b\[0mcareful\nnews\n", stream.getvalue())


def test_a_traceback_is_kept() -> None:
    stream = io.StringIO()
    configure_logging(Console(file=stream))
    try:
        raise ValueError("reason")
    except ValueError:
        logging.getLogger("paddle_ernie.x").exception("it failed")
    assert "error: it failed\nTraceback" in stream.getvalue()
    assert stream.getvalue().endswith("ValueError: reason\n")


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging(Console(file=first))
    configure_logging(Console(file=second), logging.WARNING)
    logger = logging.getLogger("paddle_ernie.x")
    logger.info("quiet")
    logger.warning("loud")
    assert first.getvalue() == "" and second.getvalue().count("\n") == 1


def test_other_libraries_are_left_alone() -> None:
    stream = io.StringIO()
    configure_logging(Console(file=stream))
    logging.getLogger("other").error("not ours")
    assert stream.getvalue() == ""
