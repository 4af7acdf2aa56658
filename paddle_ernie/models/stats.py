"""What routers report about one forward pass."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RouterStats:
    """How one layer spread its tokens."""

    layer: int
    """Index of the decoder layer."""
    load: np.ndarray
    """int64 [E]; tokens each expert (global id) processed."""
    entropy: float
    """Mean over tokens of the routing entropy, as a share of its maximum (log of the pool size)."""
    ids: tuple[np.ndarray, ...]
    """Per group of rows, int64 [tokens, K]: the experts (global ids) chosen, best first."""


class RouterRecorder:
    """Collects the layers' stats. A layer that runs again (recompute) overwrites its own."""

    def __init__(self) -> None:
        self._stats: dict[int, RouterStats] = {}

    def record(self, stats: RouterStats) -> None:
        """Keep the stats of one layer."""
        self._stats[stats.layer] = stats

    def all(self) -> tuple[RouterStats, ...]:
        """By rising layer index."""
        return tuple(self._stats[layer] for layer in sorted(self._stats))


def mean_entropy(probabilities: list[np.ndarray]) -> float:
    """Normalised routing entropy over the tokens of all groups [tokens, pool]; 0 without tokens."""
    total, tokens = 0.0, 0
    for group in probabilities:
        size = group.shape[1]
        tokens += len(group)
        if size > 1:
            logs = np.log(np.maximum(group, np.finfo(group.dtype).tiny))
            total -= float(np.vdot(group, logs)) / np.log(size)
    return float(total / tokens) if tokens else 0.0
