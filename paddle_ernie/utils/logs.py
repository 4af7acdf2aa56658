"""Log lines: where they go and what they look like. Tools call it once, at start-up."""

import logging

from rich.console import Console
from rich.logging import RichHandler

PACKAGE = "paddle_ernie"
PLAIN_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(console: Console, level: int = logging.INFO) -> None:
    """Send the package's log records to `console`; called again, it replaces the handler.

    On a terminal the lines are coloured and keep clear of progress bars; elsewhere they are plain
    and complete, for files and schedulers. Other libraries keep their own logging.
    """
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, log_time_format="[%X]")
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(logging.Formatter(PLAIN_FORMAT))
    logger = logging.getLogger(PACKAGE)
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
