"""Llama-family models in Hugging Face's layout as our dense model. Called by `importing`.

Architecture and names of weights are those of a dense ERNIE 4.5; one thing differs. Llama rotates
element i of a head together with element i + d/2, ERNIE element 2i together with 2i + 1. Rows of
the query and key projections are put in the order that makes the same pairs adjacent; scores are
sums over pairs and do not change:

    rows of a head    0 1 2 3 | 4 5 6 7   ->   0 4  1 5  2 6  3 7

Whatever would compute something else (biases, scaled rotations, windows) is refused.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.hf_files import TensorFiles
from paddle_ernie.convert.hf_import import check_tensors
from paddle_ernie.convert.shapes import hollow
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.models.hf_names import Arrays, from_hf, iterate_hf
from paddle_ernie.utils.errors import InputError

MODEL_TYPES = ("llama", "mistral")
DEFAULTS = {
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {"rms_norm_eps": 1e-6, "max_position_embeddings": 131_072},
}
"""What transformers takes for a key that config.json leaves out."""

ROPE_THETA = 10_000.0
DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Rotary frequencies that early checkpoints stored beside the weights."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def read_llama(path: Path) -> ImportedModel:
    """The model in a folder of config.json and safetensors."""
    source = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config = llama_config(source, str(path / "config.json"))
    files = TensorFiles(path)
    tensors = {name: files.values_of(name) for name in files if not DERIVED.fullmatch(name)}
    tokenizer_dir = path if any((path / name).is_file() for name in TOKENIZERS) else None
    arrays = dense_arrays(tensors, config, path, half_split=True)
    return ImportedModel(config, arrays, tokenizer_dir)


def llama_config(source: Mapping[str, Any], where: str) -> ModelConfig:
    """Our configuration of a Llama or Mistral config.json; InputError says what is not ours."""
    kind = source.get("model_type")
    if kind not in MODEL_TYPES:
        raise InputError(f"{where}: {unsupported_type(kind)}")
    _check_features(source, where)
    try:
        fields = {
            **{key: source[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers",
                                            "num_attention_heads", "intermediate_size")},
            **{key: source.get(key, value) for key, value in DEFAULTS[kind].items()},
        }  # fmt: skip
    except KeyError as error:
        raise InputError(f"{where}: {error.args[0]} is missing") from error
    heads, width = fields["num_attention_heads"], fields["hidden_size"]
    head_dim = source.get("head_dim")
    fields |= {
        "num_key_value_heads": source.get("num_key_value_heads") or heads,
        "head_dim": None if head_dim is None or head_dim * heads == width else head_dim,
        "moe_num_experts": 0,
        "moe_k": 1,
        "rope_theta": _rope_theta(source),
        "tie_word_embeddings": source.get("tie_word_embeddings", False),
        "initializer_range": source.get("initializer_range", 0.02),
    }
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{where}: not an architecture we can run: {error}") from error


def unsupported_type(kind: object) -> str:
    """Why a model_type is refused."""
    reasons = {
        "qwen2": "its attention has biases, which the ERNIE decoder has not",
        "qwen3": "it normalises queries and keys, which the ERNIE decoder does not",
    }
    reason = reasons.get(str(kind), "its architecture is not one we can run")
    return (
        f"model_type {kind!r} cannot be imported: {reason}; supported are ernie4_5, ernie4_5_moe, "
        f"{', '.join(MODEL_TYPES)}"
    )


def interleave_rows(weight_OI: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from (first half, second half) to adjacent pairs."""
    width = weight_OI.shape[1]
    pairs = weight_OI.reshape(-1, 2, head_dim // 2, width).swapaxes(1, 2)
    return np.ascontiguousarray(pairs).reshape(-1, width)


def dense_arrays(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, path: Path, *, half_split: bool
) -> Arrays:
    """Our arrays of tensors under public names; `half_split`: rotated as Llama does.

    InputError lists tensors that are missing, unknown or of another shape.
    """
    tensors = dict(tensors)
    if config.tie_word_embeddings:
        _drop_tied_head(tensors, path)
    expected = {name: array.shape for name, array in iterate_hf(hollow(config), config)}
    check_tensors(path, expected, {name: array.shape for name, array in tensors.items()})
    if half_split:
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}.self_attn"
            for name in (f"{prefix}.q_proj.weight", f"{prefix}.k_proj.weight"):
                tensors[name] = interleave_rows(tensors[name], config.dim_per_head)
    return from_hf(tensors, config)


def _check_features(source: Mapping[str, Any], where: str) -> None:
    """Refuse what changes the computation and our decoder does not have."""
    rope = source.get("rope_scaling") or source.get("rope_parameters") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    partial = source.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1
    found = {
        "hidden_act": (source.get("hidden_act", "silu"), "silu"),
        "attention_bias": (bool(source.get("attention_bias")), False),
        "mlp_bias": (bool(source.get("mlp_bias")), False),
        "sliding_window": (source.get("sliding_window"), None),
        "quantization_config": (source.get("quantization_config"), None),
        "partial_rotary_factor": (partial, 1),
        "the type of rope_scaling": (rope_type, "default"),
    }
    for key, (value, expected) in found.items():
        if value != expected:
            raise InputError(
                f"{where}: {key} is {value!r}; only models where it is {expected!r} can be imported"
            )


def _rope_theta(source: Mapping[str, Any]) -> float:
    """At the top level, or since transformers 5 in rope_parameters."""
    parameters = source.get("rope_parameters") or {}
    return float(source.get("rope_theta") or parameters.get("rope_theta") or ROPE_THETA)


def _drop_tied_head(tensors: dict[str, np.ndarray], path: Path) -> None:
    """Some files repeat the embedding as the output layer."""
    head = tensors.pop("lm_head.weight", None)
    if head is not None and not np.array_equal(head, tensors.get("model.embed_tokens.weight")):
        raise InputError(
            f"{path}: tie_word_embeddings is true, but lm_head.weight is not the embedding; "
            "set tie_word_embeddings to false in config.json if the output layer is meant"
        )
