"""ForwardPlan: what part of the model each row of a batch uses. The model's forward takes it.

A plan is plain data with no notion of elasticity: `elastic.supernet` compiles Subnets into one,
and the full model is the plan in which every row uses everything. Rows that do not list a layer
skip it and cost nothing there; rows are grouped so that tokens of one group share their expert
pool and top-k.

    rows of the batch      layer 0            layer 1            layer 2
    0  full                [all experts, K]   [all experts, K]   [all experts, K]
    1  full                [all experts, K]   [all experts, K]   [all experts, K]
    2  depth-reduced       [all experts, K]   --- skipped ---    [all experts, K]
    3  width + sparsity    [experts 1 4 6, k] [experts 0 2 7, k] [experts 3 4 5, k]
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ExpertGroup:
    """Rows of a batch that share an expert pool and top-k in one layer."""

    rows: np.ndarray
    """int64 [rows in the group], ascending indices into the batch."""
    experts: np.ndarray | None
    """int64 [pool size], ascending global expert ids; None means all experts."""
    top_k: int
    """Experts chosen per token; at most the pool size."""


@dataclass(frozen=True)
class LayerPlan:
    """The rows that run one layer, in groups. The groups partition the active rows."""

    groups: tuple[ExpertGroup, ...]

    @property
    def rows(self) -> np.ndarray:
        """int64, ascending indices of the rows that run this layer."""
        if not self.groups:
            return np.empty(0, np.int64)
        return np.sort(np.concatenate([group.rows for group in self.groups]))


@dataclass(frozen=True)
class ForwardPlan:
    """One LayerPlan per decoder layer; dense layers only use the rows."""

    num_rows: int
    layers: tuple[LayerPlan, ...]


def full_plan(num_rows: int, num_layers: int, top_k: int) -> ForwardPlan:
    """Every row runs every layer with all experts and the default top-k."""
    group = ExpertGroup(rows=np.arange(num_rows, dtype=np.int64), experts=None, top_k=top_k)
    return ForwardPlan(num_rows=num_rows, layers=(LayerPlan(groups=(group,)),) * num_layers)
