"""Log lines: plain in files, coloured on terminals, once each."""

import io
import logging
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
    line = stream.getvalue()
    assert line.endswith(" INFO paddle_ernie.data.x: read 3 [bold]files[/bold]\n")
    assert "\x1b" not in line


def test_a_terminal_gets_its_own_handler() -> None:
    stream = io.StringIO()
    configure_logging(Console(file=stream, force_terminal=True, width=80))
    logging.getLogger("paddle_ernie.x").warning("careful")
    assert "WARNING" in stream.getvalue() and "careful" in stream.getvalue()


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
