"""Search: the sizes (layers, experts, top-k) whose parameter counts come closest to two ratios.

`tools/extract.py --total-ratio --active-ratio` and the extract stage call it. ERNIE 5.1 has about
a third of ERNIE 5.0's parameters and half of its active ones; how the sub-network was searched for
is not published, so the rule is ours: every size the model allows is counted (at most
layers x top-k x experts of them), and of those about as close as the closest the one with most
layers wins. Width goes before depth because cutting experts costs less quality than cutting layers
(Star Elastic keeps 98.1 % of the parent's score after width cuts, 95.2 % after depth cuts).
No Paddle: `--dry-run` uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import parameter_counts
from paddle_ernie.utils.errors import InputError

TIE = 0.02  # distances this close count as equal: two points off a ratio is within "about a third"
MAX_DISTANCE = 0.15  # further off than this is another model than the one asked for
NEAREST_LISTED = 3


@dataclass(frozen=True)
class SearchResult:
    """The sizes that were found and the ratios they really have."""

    spec: SubnetSpec
    total_ratio: float
    """Share of all parameters without embeddings."""
    active_ratio: float
    """Share of the active parameters without embeddings."""
    distance: float
    """Root of the summed squared relative errors of both ratios."""

    def __str__(self) -> str:
        """For messages and tables."""
        return (
            f"layers={self.spec.layers},experts={self.spec.experts},top_k={self.spec.top_k} "
            f"(total {self.total_ratio:.3f}, active {self.active_ratio:.3f})"
        )


def search_spec(
    config: ModelConfig,
    total_ratio: float,
    active_ratio: float,
    ranking: Importance | None = None,
) -> SearchResult:
    """The sizes closest to both ratios; an InputError that lists the nearest when none is close.

    Which layers a number of layers stands for, and so how many of them are dense, is what
    `Subnet.from_spec` with the same `ranking` will choose.
    """
    found = enumerate_sizes(config, total_ratio, active_ratio, ranking)
    closest = min(result.distance for result in found)
    if closest > MAX_DISTANCE:
        raise _infeasible(found, total_ratio, active_ratio)
    tied = [result for result in found if result.distance <= closest + TIE]
    return min(tied, key=_preference)


def enumerate_sizes(
    config: ModelConfig,
    total_ratio: float,
    active_ratio: float,
    ranking: Importance | None = None,
) -> list[SearchResult]:
    """For every number of layers and every top-k, the closest pool size."""
    whole = parameter_counts(config)
    results = []
    for layers in range(1, config.num_hidden_layers + 1):
        kept = Subnet.from_spec(SubnetSpec(layers=layers), config, ranking)
        largest = standalone_config(config, kept)
        for top_k in range(1, config.moe_k + 1) if largest.moe_layers else [None]:
            experts, total, active = _counts_by_experts(largest, top_k)
            total_of = total / whole.total_without_embedding
            active_of = active / whole.active_without_embedding
            distance = np.hypot(total_of / total_ratio - 1, active_of / active_ratio - 1)
            best = int(np.argmin(distance))
            spec = SubnetSpec(layers=layers, experts=experts[best], top_k=top_k)
            ratios = float(total_of[best]), float(active_of[best])
            results.append(SearchResult(spec, *ratios, float(distance[best])))
    return results


def _counts_by_experts(
    largest: ModelConfig, top_k: int | None
) -> tuple[Sequence[int | None], np.ndarray, np.ndarray]:
    """Legal pool sizes with total and active parameters of each, embeddings not counted."""
    if top_k is None:
        counts = parameter_counts(largest)
        active = np.array([counts.active_without_embedding])
        return [None], np.array([counts.total_without_embedding]), active
    sizes = np.arange(top_k, largest.moe_num_experts + 1)
    first, last = (
        parameter_counts(largest.model_copy(update={"moe_num_experts": int(size), "moe_k": top_k}))
        for size in (sizes[0], sizes[-1])
    )
    return (
        sizes.tolist(),
        _line(sizes, first.total_without_embedding, last.total_without_embedding),
        _line(sizes, first.active_without_embedding, last.active_without_embedding),
    )


def _line(sizes: np.ndarray, first: int, last: int) -> np.ndarray:
    """Counts for all sizes from those at both ends: every expert adds the same number."""
    steps = max(1, int(sizes[-1] - sizes[0]))
    return first + (sizes - sizes[0]) * ((last - first) // steps)


def _preference(result: SearchResult) -> tuple[int, float, int]:
    """Most layers, then closest, then the larger top-k."""
    assert isinstance(result.spec.layers, int)
    return -result.spec.layers, result.distance, -(result.spec.top_k or 0)


def _infeasible(found: list[SearchResult], total_ratio: float, active_ratio: float) -> InputError:
    nearest = sorted(found, key=lambda result: result.distance)[:NEAREST_LISTED]
    listed = "\n  ".join(map(str, nearest))
    return InputError(
        f"extract: no sub-model is near total_ratio {total_ratio:g} and active_ratio "
        f"{active_ratio:g} (parameters without embeddings); the nearest are\n  {listed}\n"
        "ask for ratios near one of these, or give the sizes themselves (subnet)"
    )
