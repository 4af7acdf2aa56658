"""Log lines: where they go and what they look like. Tools call it once, at start-up."""

import logging

from rich.console import Console
from rich.text import Text

PACKAGE = "paddle_ernie"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
STYLES = {"warning": "bold yellow", "error": "bold red", "critical": "bold red"}


def configure_logging(console: Console, level: int = logging.INFO) -> None:
    """Send the package's log records to `console`; called again, it replaces the handler.

    On a terminal the lines keep clear of progress bars; elsewhere, in files and schedulers, each
    begins with date and time. What is more than news has its level before it. Other libraries keep
    their own logging.
    """
    logger = logging.getLogger(PACKAGE)
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(_ConsoleHandler(console))
    logger.setLevel(level)
    logger.propagate = False


class _ConsoleHandler(logging.Handler):
    """Prints each record on a console, without markup; lines are broken on terminals only."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(message)s", TIME_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Print `record`; what goes wrong is reported as the logging package reports it."""
        try:
            whole_lines = not self._console.is_terminal
            self._console.print(self._text(record), soft_wrap=whole_lines, highlight=False)
        except Exception:
            self.handleError(record)

    def _text(self, record: logging.LogRecord) -> Text:
        text = Text()
        if not self._console.is_terminal and self.formatter is not None:
            text.append(f"{self.formatter.formatTime(record, TIME_FORMAT)} ")
        if record.levelno > logging.INFO:
            level = record.levelname.lower()
            text.append(f"{level}: ", STYLES.get(level, ""))
        return text.append(self.format(record))
