"""Our parameter names and layout <-> those of public ERNIE 4.5 MoE checkpoints. No Paddle.

Ours stores linear weights as [in, out], fuses q/k/v and gate/up, and stacks experts; the public
layout is one [out, in] matrix each. Called by import, by export, and by the golden tests.

    layers.2.mlp.experts_gate_up_proj [E, D, 2F] <-> model.layers.2.mlp.experts.N.gate_proj.weight
                                                     model.layers.2.mlp.experts.N.up_proj.weight
"""

from collections.abc import Iterator, Mapping

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.utils.errors import InputError

Arrays = dict[str, np.ndarray]

NORMS = ("input_layernorm", "post_attention_layernorm")
GATE = "gate.weight"
BIAS = "moe_statics.e_score_correction_bias"


def to_hf(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> Arrays:
    """Public names and layout of all our arrays."""
    result: Arrays = {
        "model.embed_tokens.weight": arrays["embed_tokens"],
        "model.norm.weight": arrays["norm"],
    }
    if not config.tie_word_embeddings:
        result["lm_head.weight"] = arrays["lm_head"]
    for ours, theirs, is_moe in _blocks(config):
        for name in NORMS:
            result[f"{theirs}.{name}.weight"] = arrays[f"{ours}.{name}"]
        qkv = np.split(arrays[f"{ours}.self_attn.qkv_proj"], _qkv_cuts(config), axis=1)
        for name, part in zip("qkv", qkv, strict=True):
            result[f"{theirs}.self_attn.{name}_proj.weight"] = part.T
        result[f"{theirs}.self_attn.o_proj.weight"] = arrays[f"{ours}.self_attn.o_proj"].T
        if is_moe:
            _moe_to_hf(arrays, f"{ours}.mlp", result, f"{theirs}.mlp", config)
        else:
            _mlp_to_hf(arrays, f"{ours}.mlp", result, f"{theirs}.mlp")
    if config.num_nextn_predict_layers:
        result["model.mtp_hidden_norm.0.weight"] = arrays["mtp.hidden_norm"]
        result["model.mtp_emb_norm.0.weight"] = arrays["mtp.embedding_norm"]
        result["model.mtp_linear_proj.0.weight"] = _swap_halves(arrays["mtp.proj"]).T
    return {name: np.ascontiguousarray(array) for name, array in result.items()}


def from_hf(source: Mapping[str, np.ndarray], config: ModelConfig) -> Arrays:
    """Our names and layout; InputError lists what is missing."""
    if missing := [name for name in public_names(config) if name not in source]:
        names = "\n  ".join(missing)
        raise InputError(f"these weights are missing from the checkpoint:\n  {names}")
    result: Arrays = {
        "embed_tokens": source["model.embed_tokens.weight"],
        "norm": source["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        result["lm_head"] = source["lm_head.weight"]
    for ours, theirs, is_moe in _blocks(config):
        for name in NORMS:
            result[f"{ours}.{name}"] = source[f"{theirs}.{name}.weight"]
        qkv = [source[f"{theirs}.self_attn.{name}_proj.weight"].T for name in "qkv"]
        result[f"{ours}.self_attn.qkv_proj"] = np.concatenate(qkv, axis=1)
        result[f"{ours}.self_attn.o_proj"] = source[f"{theirs}.self_attn.o_proj.weight"].T
        if is_moe:
            _moe_from_hf(source, f"{theirs}.mlp", result, f"{ours}.mlp", config)
        else:
            _mlp_from_hf(source, f"{theirs}.mlp", result, f"{ours}.mlp")
    if config.num_nextn_predict_layers:
        result["mtp.hidden_norm"] = source["model.mtp_hidden_norm.0.weight"]
        result["mtp.embedding_norm"] = source["model.mtp_emb_norm.0.weight"]
        result["mtp.proj"] = _swap_halves(source["model.mtp_linear_proj.0.weight"].T)
    return {name: np.ascontiguousarray(array) for name, array in result.items()}


def public_names(config: ModelConfig) -> list[str]:
    """Names of all weights of a public checkpoint with this architecture."""
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    if not config.tie_word_embeddings:
        names.append("lm_head.weight")
    if config.num_nextn_predict_layers:
        names += [
            f"model.mtp_{part}.0.weight" for part in ("hidden_norm", "emb_norm", "linear_proj")
        ]
    for _, prefix, is_moe in _blocks(config):
        names += [f"{prefix}.{norm}.weight" for norm in NORMS]
        names += [f"{prefix}.self_attn.{name}_proj.weight" for name in "qkvo"]
        mlps = [f"{prefix}.mlp"]
        if is_moe:
            names += [f"{prefix}.mlp.{name}" for name in (GATE, BIAS)]
            mlps = [f"{prefix}.mlp.experts.{expert}" for expert in range(config.moe_num_experts)]
            if config.moe_num_shared_experts:
                mlps.append(f"{prefix}.mlp.shared_experts")
        names += [f"{mlp}.{name}_proj.weight" for mlp in mlps for name in ("gate", "up", "down")]
    return names


def _blocks(config: ModelConfig) -> Iterator[tuple[str, str, bool]]:
    """(our prefix, public prefix, whether it has experts) of every block."""
    for layer in range(config.num_hidden_layers):
        yield f"layers.{layer}", f"model.layers.{layer}", config.is_moe_layer(layer)
    if config.num_nextn_predict_layers:
        yield "mtp.block", "model.mtp_block.0", False


def _qkv_cuts(config: ModelConfig) -> list[int]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return [heads * config.dim_per_head, (heads + kv_heads) * config.dim_per_head]


def _swap_halves(proj: np.ndarray) -> np.ndarray:
    """Ours is [hidden; embedding] as DeepSeek-V3 writes it, ERNIE's is [embedding; hidden]."""
    half = len(proj) // 2
    return np.concatenate([proj[half:], proj[:half]])


def _mlp_to_hf(arrays: Mapping[str, np.ndarray], ours: str, result: Arrays, theirs: str) -> None:
    gate, up = np.split(arrays[f"{ours}.gate_up_proj"], 2, axis=1)
    result[f"{theirs}.gate_proj.weight"] = gate.T
    result[f"{theirs}.up_proj.weight"] = up.T
    result[f"{theirs}.down_proj.weight"] = arrays[f"{ours}.down_proj"].T


def _mlp_from_hf(source: Mapping[str, np.ndarray], theirs: str, result: Arrays, ours: str) -> None:
    parts = [source[f"{theirs}.{name}_proj.weight"].T for name in ("gate", "up")]
    result[f"{ours}.gate_up_proj"] = np.concatenate(parts, axis=1)
    result[f"{ours}.down_proj"] = source[f"{theirs}.down_proj.weight"].T


def _moe_to_hf(
    arrays: Mapping[str, np.ndarray], ours: str, result: Arrays, theirs: str, config: ModelConfig
) -> None:
    result[f"{theirs}.{GATE}"] = arrays[f"{ours}.gate"]
    bias = arrays[f"{ours}.correction_bias"][None]
    result[f"{theirs}.{BIAS}"] = bias
    for expert in range(config.moe_num_experts):
        weights = {
            name: arrays[f"{ours}.experts_{name}"][expert] for name in ("gate_up_proj", "down_proj")
        }
        _mlp_to_hf(
            {f"expert.{name}": array for name, array in weights.items()},
            "expert", result, f"{theirs}.experts.{expert}",
        )  # fmt: skip
    if config.moe_num_shared_experts:
        _mlp_to_hf(arrays, f"{ours}.shared_experts", result, f"{theirs}.shared_experts")


def _moe_from_hf(
    source: Mapping[str, np.ndarray], theirs: str, result: Arrays, ours: str, config: ModelConfig
) -> None:
    result[f"{ours}.gate"] = source[f"{theirs}.{GATE}"]
    bias = source[f"{theirs}.{BIAS}"]
    result[f"{ours}.correction_bias"] = bias.reshape(-1)
    experts: list[Arrays] = [{} for _ in range(config.moe_num_experts)]
    for index, expert in enumerate(experts):
        _mlp_from_hf(source, f"{theirs}.experts.{index}", expert, "expert")
    for name in ("gate_up_proj", "down_proj"):
        result[f"{ours}.experts_{name}"] = np.stack([e[f"expert.{name}"] for e in experts])
    if config.moe_num_shared_experts:
        _mlp_from_hf(source, f"{theirs}.shared_experts", result, f"{ours}.shared_experts")
