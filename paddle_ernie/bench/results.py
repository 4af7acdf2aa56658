"""Figures of a benchmark: as tables for people, under the same names as JSON for programs."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.threads import cpu_model


@dataclass(frozen=True)
class Result:
    """One measurement."""

    name: str
    """Key in the JSON file."""
    table: Table
    """For people."""
    values: Any
    """For programs: a dictionary, or a list of them."""


def ratio_column(name: str = "ratio") -> Column:
    """How many times as fast, to two digits."""
    return Column(name, show=lambda value: f"{value:.2f}")


def show(results: Sequence[Result], console: Console) -> None:
    """Print the tables."""
    for result in results:
        console.print(result.table.to_rich())


def fill(page: str, results: Sequence[Result]) -> str:
    """A page whose tables between `<!-- NAME -->` and `<!-- /NAME -->` are those of the results."""
    for result in results:
        begin, end = f"<!-- {result.name} -->\n", f"<!-- /{result.name} -->"
        if begin in page and end in page:
            before, _, rest = page.partition(begin)
            after = rest.partition(end)[2]
            page = f"{before}{begin}{result.table.to_markdown()}\n{end}{after}"
    return page


def to_json(
    what: str, threads: int, results: Sequence[Result], conditions: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The figures, the machine they were measured on, and under which `conditions`."""
    return {
        "format": 1,
        "bench": what,
        "machine": {
            "cpu": cpu_model(),
            "threads": threads,
            "system": platform.platform(terse=True),
            "python": platform.python_version(),
        },
        "conditions": dict(conditions or {}),
        **{result.name: result.values for result in results},
    }
