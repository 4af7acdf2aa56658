"""Tables shown in the terminal (rich) and in reports (Markdown) from the same record.

Cells are raw values; a column's `show` turns them into text, the same text in both outputs.

Example:
    Table("Sizes", (Column("model", align="left"), Column("parameters", show=count)),
          (("full", 9_970_000), ("extracted", 3_410_000)))
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import rich.table
from rich.text import Text

Cell = str | int | float | None
MISSING = "–"  # an en dash reads better than a hyphen in a column of numbers

DECIMAL_PREFIXES = ("", "k", "M", "B", "T")
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Column:
    """One column: its heading, and how its values are written."""

    name: str
    align: Literal["left", "right"] = "right"
    show: Callable[[float], str] | None = None
    """Turns a number into text; None writes whole numbers in full and others to 4 digits."""

    def text(self, value: Cell) -> str:
        """`value` as it is shown; None is a dash."""
        if value is None:
            return MISSING
        if isinstance(value, str):
            return value
        return (self.show or plain)(value)


@dataclass(frozen=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}, row {number}: {len(row)} cells {list(row)} "
                    f"for {len(self.columns)} columns"
                )

    @property
    def texts(self) -> list[list[str]]:
        """The rows as shown."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def to_rich(self) -> rich.table.Table:
        """For `console.print`."""
        table = rich.table.Table(title=self.title or None, title_justify="left")
        for column in self.columns:
            # A number that does not fit is broken, never cut: "12…" reads like a number.
            table.add_column(column.name, justify=column.align, overflow="fold")
        for row in self.texts:
            # Text, not str: a cell such as "[8, 8]" is not markup.
            table.add_row(*(Text(cell) for cell in row))
        return table

    def to_markdown(self) -> str:
        """A GitHub table (without the title), padded so that the source reads well too."""
        heading = [_escape(column.name) for column in self.columns]
        body = [[_escape(cell) for cell in row] for row in self.texts]
        widths = [max(3, *map(len, cells)) for cells in zip(heading, *body, strict=True)]
        rule = [
            "-" * (width - 1) + ":" if column.align == "right" else "-" * width
            for column, width in zip(self.columns, widths, strict=True)
        ]
        lines = [self._line(heading, widths), "| " + " | ".join(rule) + " |"]
        return "\n".join(lines + [self._line(row, widths) for row in body])

    def _line(self, cells: list[str], widths: list[int]) -> str:
        padded = [
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for column, cell, width in zip(self.columns, cells, widths, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"


def plain(value: float) -> str:
    """1234 -> `1,234`; 3.14159 -> `3.142`; NaN -> `nan`."""
    if math.isfinite(value) and float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}"


def count(value: float) -> str:
    """1_234_567 -> `1.23 M`; 950 -> `950`. B is 10^9, as in parameter counts."""
    return _scaled(value, DECIMAL_PREFIXES)


def size(value: float) -> str:
    """Bytes, decimal units: 4.5e9 -> `4.50 GB`."""
    return _scaled(value, BYTE_UNITS)


def rate(value: float, unit: str = "tokens") -> str:
    """12_345 -> `12.3 k tokens/s`."""
    text = count(value)
    return f"{text} {unit}/s"


def bits(value: float) -> str:
    """3.2134 -> `3.213`; the column's heading says bits."""
    return f"{value:.3f}"


def percent(value: float) -> str:
    """0.358 -> `35.8 %`."""
    return f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """0.25 -> `0.25 s`; 75 -> `1 min 15 s`; 3700 -> `1 h 2 min`."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """Three significant digits and the largest unit that leaves at least 1."""
    if not math.isfinite(value):
        return str(value)
    power = 0
    # 999.5 would round to "1000": it belongs to the next unit.
    while abs(value) >= 999.5 and power + 1 < len(units):
        value /= 1000
        power += 1
    if power == 0:
        number = plain(value)
    else:
        digits = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
        number = f"{value:.{digits}f}"
    return f"{number} {units[power]}".rstrip()


def _escape(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
