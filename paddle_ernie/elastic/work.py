"""Floating-point work of a ForwardPlan: what a batch of sub-models really costs. No Paddle.

The monitor divides it by time for FLOP utilisation of elastic training, where rows that skip layers
or route to fewer experts must not count as full ones. One row counts as the standalone model of its
sizes would (`models.cost`), so a uniform plan's work is that model's, exactly.
"""

from collections import Counter

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.subnet import SubnetSizes
from paddle_ernie.models.cost import flops_per_token
from paddle_ernie.models.plan import ForwardPlan


def plan_flops(plan: ForwardPlan, config: ModelConfig, seq_len: int, *, backward: bool) -> float:
    """Operations of the whole batch; with `backward`, of a training step on it."""
    return sum(
        rows * seq_len * flops_per_token(config, seq_len, backward=backward, sizes=sizes)
        for sizes, rows in Counter(row_sizes(plan, config)).items()
    )


def row_sizes(plan: ForwardPlan, config: ModelConfig) -> list[SubnetSizes]:
    """What each row of the batch keeps."""
    experts: list[list[int]] = [[] for _ in range(plan.num_rows)]
    top_k: list[list[int]] = [[] for _ in range(plan.num_rows)]
    for layer, layer_plan in enumerate(plan.layers):
        is_moe = config.is_moe_layer(layer)
        for group in layer_plan.groups:
            pool = config.moe_num_experts if group.experts is None else len(group.experts)
            for row in group.rows.tolist():
                experts[row].append(pool if is_moe else 0)
                top_k[row].append(group.top_k if is_moe else 0)
    return [
        SubnetSizes(len(pools), tuple(pools), tuple(ks))
        for pools, ks in zip(experts, top_k, strict=True)
    ]
