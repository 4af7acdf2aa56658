"""Read `metrics.jsonl` back: record by record, or as series by name. Used by reports and tests.

A run may still be writing: a last line without its newline is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paddle_ernie.monitor.jsonl import decode_line
from paddle_ernie.monitor.records import Histogram, MetricRecord, as_histogram
from paddle_ernie.utils.errors import InputError


@dataclass(frozen=True)
class Series:
    """One scalar over a run."""

    steps: np.ndarray
    """int64 [N]."""
    values: np.ndarray
    """float64 [N]; NaN and inf where the run reported them."""

    @property
    def last(self) -> float:
        """The newest value."""
        return float(self.values[-1])


@dataclass
class Metrics:
    """Everything a run logged, by name."""

    scalars: dict[str, Series] = field(default_factory=dict)
    histograms: dict[str, list[tuple[int, Histogram]]] = field(default_factory=dict)
    """Name -> (step, histogram) in order."""
    texts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Name -> (step, text) in order."""


def read_records(path: Path) -> Iterator[tuple[MetricRecord, float]]:
    """Yield (record, time) of every whole line."""
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: no such metrics file; expected a run that logged at least once"
        ) from error
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decode_line(line)
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}, line {number}: not a metrics record ({error}); found "
                    f"{line[:80]!r}; remove the line or the file"
                ) from error


def read_jsonl(path: Path) -> Metrics:
    """All series of a run."""
    points: dict[str, list[tuple[int, float]]] = {}
    metrics = Metrics()
    for record, _ in read_records(path):
        for name, value in record.scalars.items():
            points.setdefault(name, []).append((record.step, value))
        for name, histogram in record.histograms.items():
            entry = (record.step, as_histogram(histogram))
            metrics.histograms.setdefault(name, []).append(entry)
        for name, text in record.texts.items():
            metrics.texts.setdefault(name, []).append((record.step, text))
    for name, pairs in points.items():
        steps, values = zip(*pairs, strict=True)
        metrics.scalars[name] = Series(np.array(steps, np.int64), np.array(values, np.float64))
    return metrics
