"""A dense model as a mixture of experts that computes the same. Called by `importing`.

Sparse upcycling (Komatsuzaki et al., arXiv 2212.05055): every expert starts as a copy of the
layer's MLP and the router at random. The weights of the chosen experts add up to one, so whatever
the router chooses, the output is that of the dense layer; training then makes the copies differ.
The first layer stays dense, as in ERNIE 4.5.
"""

import zlib
from dataclasses import replace

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.models.hf_names import Arrays
from paddle_ernie.utils.errors import InputError

FIRST_MOE_LAYER = 1


def upcycle(model: ImportedModel, *, num_experts: int, top_k: int, seed: int = 0) -> ImportedModel:
    """The model with `num_experts` copies of each MLP, `top_k` of them per token."""
    dense = model.config
    _check(dense, num_experts, top_k)
    config = dense.model_copy(
        update={
            "moe_num_experts": num_experts,
            "moe_k": top_k,
            "moe_intermediate_size": dense.intermediate_size,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": FIRST_MOE_LAYER,
        }
    )
    arrays = dict(model.arrays)
    for layer in config.moe_layers:
        _upcycle_layer(arrays, f"layers.{layer}.mlp", config, seed)
    return replace(model, config=config, arrays=arrays)


def _upcycle_layer(arrays: Arrays, prefix: str, config: ModelConfig, seed: int) -> None:
    experts = config.moe_num_experts
    for name in ("gate_up_proj", "down_proj"):
        weight = arrays.pop(f"{prefix}.{name}")
        # A view: E copies exist once they are written to the file.
        arrays[f"{prefix}.experts_{name}"] = np.broadcast_to(weight, (experts, *weight.shape))
    gate = f"{prefix}.gate"
    # A stream of its own for each router, as for the weights of a new model.
    rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(gate.encode())]))
    values = rng.standard_normal((experts, config.hidden_size), dtype=np.float32)
    arrays[gate] = values * np.float32(config.initializer_range)
    arrays[f"{prefix}.correction_bias"] = np.zeros(experts, np.float32)


def _check(dense: ModelConfig, num_experts: int, top_k: int) -> None:
    if dense.moe_layers:
        raise InputError(
            f"only dense models can be upcycled; this one has {dense.moe_num_experts} experts in "
            f"{len(dense.moe_layers)} layers already"
        )
    if dense.num_hidden_layers <= FIRST_MOE_LAYER:
        raise InputError(
            f"upcycling keeps the first layer dense; a model of {dense.num_hidden_layers} layer "
            "has none left for experts"
        )
    if not 1 <= top_k <= num_experts:
        raise InputError(f"top-k is {top_k}; expected 1 to {num_experts}, the number of experts")
