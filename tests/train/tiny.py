"""The model and the sub-models that tests of this folder train."""

from paddle_ernie.config.elastic import DepthAxis, ElasticConfig, SparsityAxis, WidthAxis
from paddle_ernie.config.model import ModelConfig

TINY = ModelConfig(
    vocab_size=320,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    moe_num_experts=4,
    moe_k=2,
    moe_intermediate_size=16,
    moe_layer_start_index=1,
    num_nextn_predict_layers=1,
    max_position_embeddings=64,
    initializer_range=0.2,
)
ELASTIC = ElasticConfig(
    depth=DepthAxis(probability=0.4, min_layers=1),
    width=WidthAxis(probability=0.4, fractions=[0.5]),
    sparsity=SparsityAxis(probability=0.4, min_k=1),
)
