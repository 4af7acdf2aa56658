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
    return {name: np.ascontiguousarray(array) for name, array in iterate_hf(arrays, config)}


def iterate_hf(
    arrays: Mapping[str, np.ndarray], config: ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """The same one by one, as views where possible: `arrays` may read from a file on demand."""
    yield "model.embed_tokens.weight", arrays["embed_tokens"]
    for ours, theirs, is_moe in blocks(config):
        for name in NORMS:
            yield f"{theirs}.{name}.weight", arrays[f"{ours}.{name}"]
        qkv = np.split(arrays[f"{ours}.self_attn.qkv_proj"], _qkv_cuts(config), axis=1)
        for name, part in zip("qkv", qkv, strict=True):
            yield f"{theirs}.self_attn.{name}_proj.weight", part.T
        yield f"{theirs}.self_attn.o_proj.weight", arrays[f"{ours}.self_attn.o_proj"].T
        if is_moe:
            yield from _moe_to_hf(arrays, f"{ours}.mlp", f"{theirs}.mlp", config)
        else:
            yield from _mlp_to_hf(arrays, f"{ours}.mlp", f"{theirs}.mlp")
    if config.num_nextn_predict_layers:
        yield "model.mtp_hidden_norm.0.weight", arrays["mtp.hidden_norm"]
        yield "model.mtp_emb_norm.0.weight", arrays["mtp.embedding_norm"]
        yield "model.mtp_linear_proj.0.weight", swap_halves(arrays["mtp.proj"]).T
    yield "model.norm.weight", arrays["norm"]
    if not config.tie_word_embeddings:
        yield "lm_head.weight", arrays["lm_head"]


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
    for ours, theirs, is_moe in blocks(config):
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
        result["mtp.proj"] = swap_halves(source["model.mtp_linear_proj.0.weight"].T)
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
    for _, prefix, is_moe in blocks(config):
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


def blocks(config: ModelConfig) -> Iterator[tuple[str, str, bool]]:
    """(our prefix, public prefix, whether it has experts) of every block."""
    for layer in range(config.num_hidden_layers):
        yield f"layers.{layer}", f"model.layers.{layer}", config.is_moe_layer(layer)
    if config.num_nextn_predict_layers:
        yield "mtp.block", "model.mtp_block.0", False


def _qkv_cuts(config: ModelConfig) -> list[int]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return [heads * config.dim_per_head, (heads + kv_heads) * config.dim_per_head]


def swap_halves(proj: np.ndarray) -> np.ndarray:
    """Ours is [hidden; embedding] as DeepSeek-V3 writes it, ERNIE's is [embedding; hidden]."""
    half = len(proj) // 2
    return np.concatenate([proj[half:], proj[:half]])


def _mlp_to_hf(
    arrays: Mapping[str, np.ndarray], ours: str, theirs: str
) -> Iterator[tuple[str, np.ndarray]]:
    gate, up = np.split(arrays[f"{ours}.gate_up_proj"], 2, axis=1)
    yield f"{theirs}.gate_proj.weight", gate.T
    yield f"{theirs}.up_proj.weight", up.T
    yield f"{theirs}.down_proj.weight", arrays[f"{ours}.down_proj"].T


def _mlp_from_hf(source: Mapping[str, np.ndarray], theirs: str, result: Arrays, ours: str) -> None:
    parts = [source[f"{theirs}.{name}_proj.weight"].T for name in ("gate", "up")]
    result[f"{ours}.gate_up_proj"] = np.concatenate(parts, axis=1)
    result[f"{ours}.down_proj"] = source[f"{theirs}.down_proj.weight"].T


def _moe_to_hf(
    arrays: Mapping[str, np.ndarray], ours: str, theirs: str, config: ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{theirs}.{GATE}", arrays[f"{ours}.gate"]
    yield f"{theirs}.{BIAS}", arrays[f"{ours}.correction_bias"][None]
    parts = {
        f"expert.{name}": arrays[f"{ours}.experts_{name}"] for name in ("gate_up_proj", "down_proj")
    }
    for expert in range(config.moe_num_experts):
        one = {name: array[expert] for name, array in parts.items()}
        yield from _mlp_to_hf(one, "expert", f"{theirs}.experts.{expert}")
    if config.moe_num_shared_experts:
        yield from _mlp_to_hf(arrays, f"{ours}.shared_experts", f"{theirs}.shared_experts")


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
