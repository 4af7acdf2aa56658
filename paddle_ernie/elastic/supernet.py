"""Compile one Subnet per row into the ForwardPlan that the model runs.

Training calls this for every micro-batch, evaluation with the same Subnet for every row. Rows with
equal expert pool and top-k in a layer form one group there, so a batch whose rows are mostly full
runs mostly as one large matrix product; rows without a layer appear in none of its groups.
"""

from collections.abc import Sequence

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.plan import ExpertGroup, ForwardPlan, LayerPlan

GroupKey = tuple[tuple[int, ...] | None, int]
"""Expert pool (None: all) and top-k; what the rows of a group have in common."""


def forward_plan(subnets: Sequence[Subnet], config: ModelConfig) -> ForwardPlan:
    """Row i of the batch runs `subnets[i]`, each of which must be valid for `config`."""
    rows_of: list[dict[GroupKey, list[int]]] = [{} for _ in range(config.num_hidden_layers)]
    for row, subnet in enumerate(subnets):
        for layer, pool, top_k in zip(subnet.layers, subnet.experts, subnet.top_k, strict=True):
            rows_of[layer].setdefault(_group_key(pool, top_k, config), []).append(row)
    layers = tuple(LayerPlan(tuple(map(_group, by_key, by_key.values()))) for by_key in rows_of)
    return ForwardPlan(num_rows=len(subnets), layers=layers)


def uniform_plan(subnet: Subnet, num_rows: int, config: ModelConfig) -> ForwardPlan:
    """Every row runs `subnet`."""
    return forward_plan([subnet] * num_rows, config)


def _group_key(pool: tuple[int, ...], top_k: int, config: ModelConfig) -> GroupKey:
    if not pool:
        return None, config.moe_k  # a dense layer, as full_plan has it
    return (None if len(pool) == config.moe_num_experts else pool), top_k


def _group(key: GroupKey, rows: list[int]) -> ExpertGroup:
    pool, top_k = key
    experts = None if pool is None else np.asarray(pool, np.int64)
    return ExpertGroup(rows=np.asarray(rows, np.int64), experts=experts, top_k=top_k)
