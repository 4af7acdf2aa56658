"""MetricRecord: everything one moment of a run reports; what training hands to a Monitor.

Scalars are numbers that become curves, histograms are counts over bins, texts are samples.

Example:
    MetricRecord(
        step=120,
        scalars={"loss/train": 3.21, "train/lr": 1e-3},
        histograms={"moe/layer_1/load": np.array([510, 498, 530, 510])},
        texts={"samples/0": "def main():"},
    )
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

RESERVED_NAMES = frozenset({"step", "time", "histograms", "texts"})
"""Keys of a JSON line that are not scalars."""


@dataclass(frozen=True)
class Histogram:
    """Counts over consecutive bins.

    Example: four experts that received 3, 0, 5 and 4 tokens:
        counts  3 0 5 4
        edges   0 1 2 3 4
    """

    counts: np.ndarray
    """float64 [N]; how much fell into each bin."""
    edges: np.ndarray
    """float64 [N + 1]; bin i is [edges[i], edges[i + 1])."""

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> "Histogram":
        """One bin per index: entry i of `counts` (tokens of expert i) is the bin [i, i + 1)."""
        values = np.asarray(counts, dtype=np.float64).reshape(-1)
        return cls(values, np.arange(len(values) + 1, dtype=np.float64))

    @classmethod
    def of_values(cls, values: np.ndarray, bins: int = 20) -> "Histogram":
        """`bins` bins of equal width over the range of the finite entries of `values`."""
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        counts, edges = np.histogram(flat[np.isfinite(flat)], bins=bins)
        return cls(counts.astype(np.float64), edges)

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(
                f"a histogram of {len(self.counts)} counts needs {len(self.counts) + 1} edges, "
                f"got {len(self.edges)}"
            )


@dataclass(frozen=True)
class MetricRecord:
    """What is logged for one step. A step may have several records (training, then evaluation)."""

    step: int
    """Optimizer steps done; records of a run come in non-decreasing order."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Name -> number; a name is `area/what`, for example `loss/train`. NaN and inf are allowed."""
    histograms: Mapping[str, np.ndarray | Histogram] = field(default_factory=dict)
    """Name -> Histogram, or an array of counts whose index is the bin (`Histogram.of_counts`)."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Name -> text, for example `samples/0`."""

    def __post_init__(self) -> None:
        for name in (*self.scalars, *self.histograms, *self.texts):
            if name in RESERVED_NAMES or "%" in name or not name.strip("/"):
                raise ValueError(
                    f"metric name {name!r} cannot be used: expected `area/what` without '%' and "
                    f"none of {', '.join(sorted(RESERVED_NAMES))}"
                )


def as_histogram(value: np.ndarray | Histogram) -> Histogram:
    """`value` as a Histogram; a bare array is counts by index."""
    return value if isinstance(value, Histogram) else Histogram.of_counts(value)
