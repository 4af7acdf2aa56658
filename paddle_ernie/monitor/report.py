"""Report: builds `report.md`, its figures and `report.json`; used by every stage that reports.

    report.md            headings, text, tables and figures in the order they were added
    report_figures/*.png what the figures show
    report.json          {"format": 1, "bpb.full": 2.31, ...}: every figure under a stable name

Each file is written aside and renamed, `report.md` last: whoever sees it sees a whole report.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from paddle_ernie.monitor.tables import Table
from paddle_ernie.utils.files import write_atomic, write_json, write_text

FORMAT = 1
"""Version of report.json; raised when a name changes its meaning."""
FIGURES = "report_figures"
NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Report:
    """Collects parts in order; `write` puts them into a folder."""

    def __init__(self, title: str) -> None:
        self._parts: list[str] = [f"# {title}"]
        self._figures: dict[str, Callable[[Path], None]] = {}
        self.numbers: dict[str, float] = {}
        """What report.json will hold, without its format."""

    def heading(self, text: str) -> None:
        """A section heading."""
        self._parts.append(f"## {text}")

    def text(self, markdown: str) -> None:
        """A paragraph of Markdown."""
        self._parts.append(markdown.strip())

    def code(self, text: str) -> None:
        """`text` as it is, whatever it contains."""
        longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        self._parts.append(f"{fence}text\n{text}\n{fence}")

    def table(self, table: Table, reading: str) -> None:
        """A table, and one sentence on how to read it."""
        title = f"**{table.title}**\n\n" if table.title else ""
        self._parts.append(f"{title}{table.to_markdown()}\n\n*{reading.strip()}*")

    def figure(self, name: str, draw: Callable[[Path], None], caption: str) -> None:
        """A picture that `draw(path)` writes when the report is written, and its caption."""
        if name in self._figures or not NAME.fullmatch(name):
            raise ValueError(f"figure name {name!r} is taken or not made of letters, digits, _ -")
        self._figures[name] = draw
        alt = re.sub(r"[\[\]*`_]", "", caption).strip()
        self._parts.append(f"![{alt}]({FIGURES}/{name}.png)\n\n*{caption.strip()}*")

    def number(self, name: str, value: float) -> None:
        """Put `value` into report.json as `name`, for example `bpb.full`. A name is given once."""
        if not NAME.fullmatch(name) or name == "format":
            raise ValueError(
                f"report.json name {name!r}: expected words of letters, digits, _ and - "
                "joined by dots, and not 'format'"
            )
        if name in self.numbers:
            raise ValueError(
                f"report.json name {name!r} is given twice: {self.numbers[name]} and {value}"
            )
        self.numbers[name] = value.item() if isinstance(value, np.generic) else value

    def add_numbers(self, prefix: str, values: Mapping[str, float]) -> None:
        """`number(f"{prefix}.{name}", value)` for each entry."""
        for name, value in values.items():
            self.number(f"{prefix}.{name}", value)

    def markdown(self) -> str:
        """The text of report.md."""
        return "\n\n".join(self._parts) + "\n"

    def write(self, directory: Path) -> Path:
        """Write everything into `directory`; return the path of report.md."""
        for name, draw in self._figures.items():
            write_atomic(directory / FIGURES / f"{name}.png", draw)
        # Strict JSON has no NaN: a figure that is not a number is null.
        values = {
            name: value if math.isfinite(value) else None for name, value in self.numbers.items()
        }
        write_json(directory / "report.json", {"format": FORMAT, **values})
        write_text(directory / "report.md", self.markdown())
        return directory / "report.md"
