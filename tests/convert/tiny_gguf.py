"""A tiny Llama in a GGUF file as llama.cpp's converters write it, and its quantised formats."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from paddle_ernie.utils.utf8 import byte_alphabet
from tests.convert.tiny_llama import Weights, sizes

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "a n", "an d", "Ġ and", "1 2", "Ġ 1", "' s")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


def vocabulary(missing: bytes = b"") -> tuple[list[str], list[int]]:
    """(tokens, kinds) of a byte-level BPE without the tokens of `missing` bytes."""
    letters = [name for byte, name in enumerate(byte_alphabet()) if byte not in missing]
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*CONTROL_TOKENS, *letters, *merged, "<tool>"]
    normal = len(tokens) - len(CONTROL_TOKENS) - 1
    return tokens, [3] * len(CONTROL_TOKENS) + [1] * normal + [4]


def tokenizer_settings(rule: str = "smollm", missing: bytes = b"") -> dict[str, Any]:
    """tokenizer.* of a file's metadata."""
    tokens, kinds = vocabulary(missing)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """llama.* of a file's metadata."""
    heads, kv_heads, width = sizes(config)
    return {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": width,
        "llama.attention.value_length": width,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": width,
    }


def write_gguf(
    path: Path,
    config: dict[str, Any],
    weights: Weights,
    *,
    architecture: str = "llama",
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
    tensors: Weights | None = None,
) -> Path:
    """Matrices as `dtype`; `extra` changes metadata (None removes), `tensors` are added."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**settings(config), **tokenizer_settings(), **(extra or {})}.items():
        if value is not None:
            _add(writer, key, value)
    for name, array in weights.items():
        matrix = dtype if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quantize(_for_llama_cpp(name, array, config), matrix)
        writer.add_tensor(gguf_name(name), stored, raw_dtype=matrix)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:])]}.weight"
    return f"{NAMES['.'.join(parts)]}.weight"


def rounded(array: np.ndarray, dtype: gguf.GGMLQuantizationType) -> np.ndarray:
    """The values that are left of a matrix, decoded here from the bytes of its blocks of 32."""
    if array.ndim != 2 or dtype == gguf.GGMLQuantizationType.F32:
        return array
    if dtype == gguf.GGMLQuantizationType.F16:
        return array.astype(np.float16).astype(np.float32)
    blocks = gguf.quantize(array, dtype).reshape(-1, {"Q8_0": 34, "Q4_1": 20}[dtype.name])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if dtype.name == "Q8_0":
        values = scale * blocks[:, 2:].copy().view(np.int8)
    else:
        least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        values = scale * nibbles + least
    return values.astype(np.float32).reshape(array.shape)


def _for_llama_cpp(name: str, array: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Query and key rows, one by one: i goes to 2i, i + width / 2 to 2i + 1."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return array
    width = sizes(config)[2]
    result = np.empty_like(array)
    for row in range(len(array)):
        head, place = divmod(row, width)
        half, pair = divmod(place, width // 2)
        result[head * width + 2 * pair + half] = array[row]
    return result


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)
