"""Shapes of all arrays of a model, from its configuration alone. No Paddle.

`hollow` has arrays of these shapes that take no memory: sent through a renaming, they tell the
names and shapes of the other side. Called by import, which checks a checkpoint against them before
it reads any tensor.
"""

import numpy as np

from paddle_ernie.config.model import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def our_shapes(config: ModelConfig) -> Shapes:
    """Parameter name -> shape, as ErnieMoeModel(config) has them."""
    assert config.vocab_size is not None
    D, V = config.hidden_size, config.vocab_size
    shapes: Shapes = {"embed_tokens": (V, D), "norm": (D,)}
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (V, D)
    for layer in range(config.num_hidden_layers):
        shapes |= _block(config, f"layers.{layer}", is_moe=config.is_moe_layer(layer))
    if config.num_nextn_predict_layers:
        shapes |= {"mtp.hidden_norm": (D,), "mtp.embedding_norm": (D,), "mtp.proj": (2 * D, D)}
        shapes |= _block(config, "mtp.block", is_moe=False)
    return shapes


def hollow(config: ModelConfig) -> dict[str, np.ndarray]:
    """Arrays of these shapes, whose elements are all one byte in memory."""
    return {name: np.broadcast_to(np.uint8(0), shape) for name, shape in our_shapes(config).items()}


def _block(config: ModelConfig, prefix: str, *, is_moe: bool) -> Shapes:
    D, width = config.hidden_size, config.dim_per_head
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    shapes: Shapes = {
        f"{prefix}.input_layernorm": (D,),
        f"{prefix}.self_attn.qkv_proj": (D, (heads + 2 * kv_heads) * width),
        f"{prefix}.self_attn.o_proj": (heads * width, D),
        f"{prefix}.post_attention_layernorm": (D,),
    }
    if not is_moe:
        return shapes | _mlp(f"{prefix}.mlp", D, config.intermediate_size)
    E, F = config.moe_num_experts, config.moe_intermediate_size
    shapes |= {f"{prefix}.mlp.gate": (E, D), f"{prefix}.mlp.correction_bias": (E,)}
    stacked = _mlp(f"{prefix}.mlp.experts", D, F)
    shapes |= {name.replace("experts.", "experts_"): (E, *shape) for name, shape in stacked.items()}
    if config.moe_num_shared_experts:
        shapes |= _mlp(f"{prefix}.mlp.shared_experts", D, F * config.moe_num_shared_experts)
    return shapes


def _mlp(prefix: str, width: int, inner: int) -> Shapes:
    return {f"{prefix}.gate_up_proj": (width, 2 * inner), f"{prefix}.down_proj": (inner, width)}
