"""The architecture a Subnet has as a model of its own, and how much smaller it is. No Paddle.

Search, extraction and `elastic.work` size sub-models through it, so that a Subnet's cost is by
construction the cost of the model that would be cut out.
"""

from dataclasses import asdict, dataclass
from typing import Any

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import ParameterCounts, parameter_counts
from paddle_ernie.utils.errors import InputError


@dataclass(frozen=True)
class SizeComparison:
    """Parameter counts of a model and of the smaller one cut out of it."""

    before: ParameterCounts
    after: ParameterCounts

    @property
    def total_ratio(self) -> float:
        """Share of all parameters that is kept, embeddings not counted on either side."""
        return self.after.total_without_embedding / self.before.total_without_embedding

    @property
    def active_ratio(self) -> float:
        """Share of the parameters one token passes that is kept, embeddings not counted."""
        return self.after.active_without_embedding / self.before.active_without_embedding

    @property
    def total_ratio_with_embedding(self) -> float:
        """Share of all parameters that is kept."""
        return self.after.total / self.before.total

    @property
    def active_ratio_with_embedding(self) -> float:
        """Share of the parameters one token passes that is kept."""
        return self.after.active / self.before.active

    def to_json(self) -> dict[str, Any]:
        """Counts and ratios, with and without embeddings."""
        return {
            "params_before": _counts_json(self.before),
            "params_after": _counts_json(self.after),
            "ratios": {
                "total": self.total_ratio,
                "active": self.active_ratio,
                "total_with_embedding": self.total_ratio_with_embedding,
                "active_with_embedding": self.active_ratio_with_embedding,
            },
        }


def standalone_config(config: ModelConfig, subnet: Subnet) -> ModelConfig:
    """The ModelConfig of `subnet` cut out of a model of `config`.

    Its MoE layers must agree in pool size and top-k, which one ModelConfig has only one of.
    Without any MoE layer the result is a dense model.
    """
    sizes = subnet.sizes()
    moe = {
        (experts, top_k)
        for experts, top_k in zip(sizes.experts, sizes.top_k, strict=True)
        if experts
    }
    if len(moe) > 1:
        found = ", ".join(
            f"layer {layer}: {experts} experts, top-{top_k}"
            for layer, experts, top_k in zip(subnet.layers, sizes.experts, sizes.top_k, strict=True)
            if experts
        )
        raise InputError(
            f"subnet {subnet.id} cannot become a model of its own: its MoE layers differ "
            f"({found}); expected the same number of experts and the same top-k in all of them"
        )
    experts, top_k = next(iter(moe), (0, config.moe_k))
    changes = {
        "num_hidden_layers": sizes.layers,
        "moe_num_experts": experts,
        "moe_k": top_k,
        "moe_layer_start_index": sizes.experts.count(0),
    }
    return ModelConfig.model_validate({**config.model_dump(), **changes})


def compare_sizes(config: ModelConfig, smaller: ModelConfig) -> SizeComparison:
    """Parameter counts of both, with their ratios."""
    return SizeComparison(parameter_counts(config), parameter_counts(smaller))


def _counts_json(counts: ParameterCounts) -> dict[str, int]:
    return asdict(counts) | {
        "total_without_embedding": counts.total_without_embedding,
        "active_without_embedding": counts.active_without_embedding,
    }
