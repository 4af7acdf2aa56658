"""A tiny random Llama: its config.json, its weights, and its logits in plain NumPy, in float64.

Written from the definition of the architecture (RoFormer's rotation of halves, grouped queries,
SwiGLU), and sharing no code with the package.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 288,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}

Weights = dict[str, np.ndarray]


def make_config(**changes: Any) -> dict[str, Any]:
    """CONFIG with other values; None removes a key."""
    merged = {**CONFIG, **changes}
    return {key: value for key, value in merged.items() if key not in changes or value is not None}


def make_weights(config: dict[str, Any], seed: int = 0) -> Weights:
    """fp32 tensors under their names in Hugging Face's layout."""
    rng = np.random.default_rng(seed)
    D, F = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, width = sizes(config)
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], D), "model.norm.weight": (D,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], D)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (D,),
            f"{prefix}.post_attention_layernorm.weight": (D,),
            f"{prefix}.self_attn.q_proj.weight": (heads * width, D),
            f"{prefix}.self_attn.k_proj.weight": (kv_heads * width, D),
            f"{prefix}.self_attn.v_proj.weight": (kv_heads * width, D),
            f"{prefix}.self_attn.o_proj.weight": (D, heads * width),
            f"{prefix}.mlp.gate_proj.weight": (F, D),
            f"{prefix}.mlp.up_proj.weight": (F, D),
            f"{prefix}.mlp.down_proj.weight": (D, F),
        }
    return {
        name: rng.normal(1 if len(shape) == 1 else 0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_folder(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    """A Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def sizes(config: dict[str, Any]) -> tuple[int, int, int]:
    """(query heads, key-value heads, width of a head)."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return heads, config.get("num_key_value_heads", heads), width


def logits(config: dict[str, Any], weights: Weights, ids: np.ndarray) -> np.ndarray:
    """[S, V] of one sequence."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    eps = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        normed = rms(x, w[f"{prefix}.input_layernorm.weight"], eps)
        x = x + attention(config, w, f"{prefix}.self_attn", normed)
        normed = rms(x, w[f"{prefix}.post_attention_layernorm.weight"], eps)
        gate, up = (normed @ w[f"{prefix}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return rms(x, w["model.norm.weight"], eps) @ head.T


def attention(config: dict[str, Any], w: Weights, prefix: str, x: np.ndarray) -> np.ndarray:
    heads, kv_heads, width = sizes(config)
    S = len(x)
    q = rotate((x @ w[f"{prefix}.q_proj.weight"].T).reshape(S, heads, width), config["rope_theta"])
    k = rotate(
        (x @ w[f"{prefix}.k_proj.weight"].T).reshape(S, kv_heads, width), config["rope_theta"]
    )
    v = (x @ w[f"{prefix}.v_proj.weight"].T).reshape(S, kv_heads, width)
    outputs = []
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = q[:, head] @ k[:, shared].T / np.sqrt(width)
        scores[np.triu_indices(S, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, shared])
    return np.concatenate(outputs, axis=1) @ w[f"{prefix}.o_proj.weight"].T


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Element i turns with element i + width / 2, by position * theta^(-2i / width)."""
    width = x.shape[-1]
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., : width // 2], x[..., width // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
