"""Generated models, sizes, scores and batches of sub-models for the tests of this folder."""

import numpy as np
from hypothesis import strategies as st

from paddle_ernie.config.elastic import (
    DepthAxis,
    ElasticConfig,
    SparsityAxis,
    SubnetSpec,
    WidthAxis,
)
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.elastic.space import ElasticSpace

PLAN_MODEL = ModelConfig(num_hidden_layers=4, moe_num_experts=4, moe_k=2, moe_layer_start_index=1)
SPACE = ElasticSpace(
    ElasticConfig(
        depth=DepthAxis(probability=0.5),
        width=WidthAxis(probability=0.5),
        sparsity=SparsityAxis(probability=0.5),
    ),
    PLAN_MODEL,
)
batches = st.lists(st.integers(0, 30), min_size=1, max_size=12).map(
    lambda rows: [SPACE.sample(1, row) for row in rows]
)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    experts = draw(st.integers(0, 12))
    return ModelConfig(
        num_hidden_layers=draw(st.integers(1, 9)),
        moe_num_experts=experts,
        moe_k=draw(st.integers(1, max(1, experts))),
        moe_layer_start_index=draw(st.integers(0, 3)),
    )


@st.composite
def configs_with_specs(draw: st.DrawFn) -> tuple[ModelConfig, SubnetSpec]:
    config = draw(configs())
    layers = draw(
        st.none()
        | st.integers(1, config.num_hidden_layers)
        | st.sets(st.integers(0, config.num_hidden_layers - 1), min_size=1).map(list)
    )
    if not config.moe_num_experts:
        return config, SubnetSpec(layers=layers)
    top_k = draw(st.none() | st.integers(1, config.moe_k))
    experts = draw(st.none() | st.integers(top_k or config.moe_k, config.moe_num_experts))
    return config, SubnetSpec(layers=layers, experts=experts, top_k=top_k)


def random_importance(config: ModelConfig, seed: int) -> Importance:
    random = np.random.default_rng(seed)
    return Importance(
        method="reap",
        layer_scores=tuple(random.random(config.num_hidden_layers)),
        expert_scores=tuple(
            random.random(config.moe_num_experts) if config.is_moe_layer(layer) else None
            for layer in range(config.num_hidden_layers)
        ),
    )
