"""Our parameter names <-> those of the -Paddle repositories of ERNIE 4.5. No Paddle.

Both store [in, out], q/k/v and gate/up in one matrix; theirs has a matrix per expert, and the
router and the output layer transposed:

    layers.2.mlp.experts_gate_up_proj <-> ernie.layers.2.mlp.experts.N.up_gate_proj.weight [D, 2F]
    layers.2.mlp.gate [E, D]          <-> ernie.layers.2.mlp.gate.weight [D, E]
    lm_head [V, D]                    <-> lm_head.weight [D, V]

FastDeploy's draft of multi-token prediction has these names in either layout (`iterate_draft`).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.hf_names import BIAS, GATE, NORMS, Arrays, blocks, swap_halves

PREFIX = "ernie"
MLP = (
    ("gate_up_proj", "up_gate_proj"),
    ("down_proj", "down_proj"),
)  # ours, theirs: [gate; up] both
Named = Iterator[tuple[str, np.ndarray]]


def iterate_paddle(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> Named:
    """Names and layout of a -Paddle checkpoint, as views of our arrays where possible."""
    yield "ernie.embed_tokens.weight", arrays["embed_tokens"]
    for ours, public, is_moe in blocks(config):
        yield from _block(arrays, ours, _theirs(public), is_moe, config)
    if config.num_nextn_predict_layers:
        yield from _mtp_ends(arrays)
    yield "ernie.norm.weight", arrays["norm"]
    if not config.tie_word_embeddings:
        yield "lm_head.weight", arrays["lm_head"].T


def iterate_draft(
    arrays: Mapping[str, np.ndarray], config: ModelConfig, *, transposed: bool
) -> Named:
    """The prediction block as FastDeploy's draft model; `transposed` beside the torch layout.

    FastDeploy renames nothing in a draft: it wants these fused names, and reads matrices as
    [out, in] if the main model's config.json says torch. Embedding, last norm and output layer are
    the main model's.
    """
    assert config.num_nextn_predict_layers, "no prediction block"
    for ours, public, is_moe in blocks(config):
        if ours.startswith("mtp."):
            tensors = [*_mtp_ends(arrays), *_block(arrays, ours, _theirs(public), is_moe, config)]
            yield from ((name, array.T if transposed else array) for name, array in tensors)


def from_paddle(source: Mapping[str, np.ndarray], config: ModelConfig) -> Arrays:
    """Our names and layout; every tensor must be there."""
    result: Arrays = {
        "embed_tokens": source["ernie.embed_tokens.weight"],
        "norm": source["ernie.norm.weight"],
    }
    if not config.tie_word_embeddings:
        result["lm_head"] = source["lm_head.weight"].T
    for ours, public, is_moe in blocks(config):
        _block_from(source, _theirs(public), result, ours, config if is_moe else None)
    if config.num_nextn_predict_layers:
        _mtp_ends_from(source, result)
    return {name: np.ascontiguousarray(array) for name, array in result.items()}


def from_draft(source: Mapping[str, np.ndarray], *, transposed: bool) -> Arrays:
    """Our arrays of the prediction block from those of a draft model."""
    if transposed:
        source = {name: array.T for name, array in source.items()}
    result: Arrays = {}
    _block_from(source, f"{PREFIX}.mtp_block.0", result, "mtp.block", None)
    _mtp_ends_from(source, result)
    return {name: np.ascontiguousarray(array) for name, array in result.items()}


def _theirs(public: str) -> str:
    return PREFIX + public.removeprefix("model")


def _mtp_ends(arrays: Mapping[str, np.ndarray]) -> Named:
    yield "ernie.mtp_hidden_norm.0.weight", arrays["mtp.hidden_norm"]
    yield "ernie.mtp_emb_norm.0.weight", arrays["mtp.embedding_norm"]
    yield "ernie.mtp_linear_proj.0.weight", swap_halves(arrays["mtp.proj"])


def _block(
    arrays: Mapping[str, np.ndarray], ours: str, theirs: str, is_moe: bool, config: ModelConfig
) -> Named:
    for name in NORMS:
        yield f"{theirs}.{name}.weight", arrays[f"{ours}.{name}"]
    for name in ("qkv_proj", "o_proj"):
        yield f"{theirs}.self_attn.{name}.weight", arrays[f"{ours}.self_attn.{name}"]
    if not is_moe:
        for our_name, name in MLP:
            yield f"{theirs}.mlp.{name}.weight", arrays[f"{ours}.mlp.{our_name}"]
        return
    yield f"{theirs}.mlp.{GATE}", arrays[f"{ours}.mlp.gate"].T
    yield f"{theirs}.mlp.{BIAS}", arrays[f"{ours}.mlp.correction_bias"][None]
    experts = [(arrays[f"{ours}.mlp.experts_{our_name}"], name) for our_name, name in MLP]
    for expert in range(config.moe_num_experts):
        for stacked, name in experts:
            yield f"{theirs}.mlp.experts.{expert}.{name}.weight", stacked[expert]
    if config.moe_num_shared_experts:
        for our_name, name in MLP:
            shared = arrays[f"{ours}.mlp.shared_experts.{our_name}"]
            yield f"{theirs}.mlp.shared_experts.{name}.weight", shared


def _mtp_ends_from(source: Mapping[str, np.ndarray], result: Arrays) -> None:
    result["mtp.hidden_norm"] = source["ernie.mtp_hidden_norm.0.weight"]
    result["mtp.embedding_norm"] = source["ernie.mtp_emb_norm.0.weight"]
    result["mtp.proj"] = swap_halves(source["ernie.mtp_linear_proj.0.weight"])


def _block_from(
    source: Mapping[str, np.ndarray],
    theirs: str,
    result: Arrays,
    ours: str,
    moe: ModelConfig | None,
) -> None:
    """`moe`: the model's configuration for a MoE block, None for a dense one."""
    for name in NORMS:
        result[f"{ours}.{name}"] = source[f"{theirs}.{name}.weight"]
    for name in ("qkv_proj", "o_proj"):
        result[f"{ours}.self_attn.{name}"] = source[f"{theirs}.self_attn.{name}.weight"]
    if moe is not None:
        _moe_from(source, f"{theirs}.mlp", result, f"{ours}.mlp", moe)
        return
    for our_name, name in MLP:
        result[f"{ours}.mlp.{our_name}"] = source[f"{theirs}.mlp.{name}.weight"]


def _moe_from(
    source: Mapping[str, np.ndarray], theirs: str, result: Arrays, ours: str, config: ModelConfig
) -> None:
    result[f"{ours}.gate"] = source[f"{theirs}.{GATE}"].T
    result[f"{ours}.correction_bias"] = source[f"{theirs}.{BIAS}"].reshape(-1)
    for our_name, name in MLP:
        experts = [
            source[f"{theirs}.experts.{expert}.{name}.weight"]
            for expert in range(config.moe_num_experts)
        ]
        result[f"{ours}.experts_{our_name}"] = np.stack(experts)
        if config.moe_num_shared_experts:
            shared = source[f"{theirs}.shared_experts.{name}.weight"]
            result[f"{ours}.shared_experts.{our_name}"] = shared
