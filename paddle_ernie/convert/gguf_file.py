"""Llama models in GGUF files, the format of llama.cpp, as ours. Called by `importing`.

Quantised tensors (Q4_1, Q8_0, ...) become the fp32 values they stand for. Query and key rows need
no permutation: the converters to this format turn the halves of Hugging Face's Llama into the
adjacent pairs that llama.cpp rotates, and these are our pairs.

    blk.2.ffn_gate.weight <-> model.layers.2.mlp.gate_proj.weight      both [out, in]
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from pydantic import ValidationError

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.llama import dense_arrays
from paddle_ernie.convert.tokenizer_files import gguf_tokenizer_fault, write_gguf_tokenizer
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.utils.errors import CheckpointError, InputError

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FREQUENCY_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies: how Llama 3.1's scaling is stored, with no setting for it."""

DEFAULT_FREQ_BASE = 10_000.0

REQUIRED_KEYS = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    }
)
OTHER_KEYS = frozenset(
    {
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "expert_count",
        "expert_used_count",
        "vocab_size",
        "tensor_data_layout",
    }
)
"""Settings that are read, checked, or known to change nothing."""

Stored = dict[str, gguf.ReaderTensor]


def read_gguf(path: Path, scratch: Path) -> ImportedModel:
    """The model in a GGUF file; its tokenizer, if we can build it, is written to `scratch`."""
    reader = _open(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    stored = {tensor.name: tensor for tensor in reader.tensors}
    _check_model(metadata, stored, path)
    config = _config(metadata, stored, path)
    tensors = {_public_name(name): _values(tensor, path) for name, tensor in stored.items()}
    arrays = dense_arrays(tensors, config, path, half_split=False)
    if fault := gguf_tokenizer_fault(metadata):
        return ImportedModel(config, arrays, None, (f"{path}: {fault}",))
    write_gguf_tokenizer(metadata, scratch)
    return ImportedModel(config, arrays, scratch)


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(
            f"{path}: not a whole GGUF file ({error}); download it again"
        ) from error


def _check_model(metadata: dict[str, Any], stored: Stored, path: Path) -> None:
    """Refuse what is not a whole Llama with plain rotations; drop factors that change nothing."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise InputError(
            f"{path}: architecture {architecture!r}; only 'llama' (Llama, SmolLM, Mistral without "
            "sliding window) can be imported from GGUF"
        )
    if (parts := metadata.get("split.count", 0)) > 1:
        raise InputError(f"{path}: one of {parts} parts; join them with `llama-gguf-split --merge`")
    if "token_embd.weight" not in stored:
        raise InputError(f"{path}: no tensor token_embd.weight; is this a model?")
    factors = stored.pop(FREQUENCY_FACTORS, None)
    if factors is not None and (_values(factors, path) != 1).any():
        raise InputError(
            f"{path}: rotary embedding scaled by {FREQUENCY_FACTORS}, as in Llama 3.1; only models "
            "without scaling can be imported"
        )


def _config(metadata: dict[str, Any], stored: Stored, path: Path) -> ModelConfig:
    settings = {
        key.removeprefix("llama."): value
        for key, value in metadata.items()
        if key.startswith("llama.")
    }
    _check_settings(settings, path)
    heads, width = settings["attention.head_count"], settings["embedding_length"]
    head_dim = settings.get("attention.key_length")
    fields = {
        "vocab_size": int(stored["token_embd.weight"].shape[1]),
        "hidden_size": width,
        "num_hidden_layers": settings["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": settings.get("attention.head_count_kv", heads),
        "head_dim": None if head_dim is None or head_dim * heads == width else head_dim,
        "intermediate_size": settings["feed_forward_length"],
        "moe_num_experts": 0,
        "moe_k": 1,
        "rope_theta": _shortest(settings.get("rope.freq_base", DEFAULT_FREQ_BASE)),
        "rms_norm_eps": _shortest(settings["attention.layer_norm_rms_epsilon"]),
        "tie_word_embeddings": "output.weight" not in stored,
        "max_position_embeddings": settings["context_length"],
    }
    try:
        config = ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{path}: not an architecture we can run: {error}") from error
    _check_head_dim(settings, config.dim_per_head, path)
    return config


def _check_settings(settings: dict[str, Any], path: Path) -> None:
    if settings.get("rope.scaling.type", "none") != "none":
        raise InputError(
            f"{path}: rotary embedding scaled by {settings['rope.scaling.type']!r}; only models "
            "without scaling can be imported"
        )
    if settings.get("expert_count", 0):
        raise InputError(
            f"{path}: {settings['expert_count']} experts; only dense Llama models can be imported"
        )
    if missing := sorted(REQUIRED_KEYS - set(settings)):
        raise InputError(f"{path}: settings are missing: {', '.join(missing)}; is this a model?")
    if unknown := sorted(set(settings) - REQUIRED_KEYS - OTHER_KEYS):
        listed = "\n  ".join(f"llama.{key} = {settings[key]!r}" for key in unknown)
        raise InputError(f"{path}: settings whose effect we do not reproduce:\n  {listed}")
    for key, value in settings.items():
        if isinstance(value, list):
            raise InputError(f"{path}: llama.{key} differs between layers ({value}); expected one")


def _check_head_dim(settings: dict[str, Any], head_dim: int, path: Path) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.get(key, head_dim) != head_dim:
            raise InputError(
                f"{path}: llama.{key} is {settings[key]}, expected the width of a head, {head_dim}"
            )


def _shortest(value: float) -> float:
    """The shortest number with this fp32 value: the file's 9.99999975e-06 was written as 1e-5."""
    return float(str(np.float32(value)))


def _public_name(name: str) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if match and match[2] in BLOCK_NAMES:
        return f"model.layers.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"
    return OUTER_NAMES.get(name, name)


def _values(tensor: gguf.ReaderTensor, path: Path) -> np.ndarray:
    try:
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError as error:
        raise InputError(
            f"{path}: {tensor.name} is quantised as {tensor.tensor_type.name}, which the gguf "
            "package cannot expand; take another file of this model, such as Q8_0 or F16"
        ) from error
