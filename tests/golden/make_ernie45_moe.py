"""Make ernie45_moe.npz: tiny random ERNIE 4.5 MoE models and what Hugging Face computes with them.

    python3.11 -m venv /tmp/hf && /tmp/hf/bin/pip install torch==2.13.0 transformers==5.24.0
    /tmp/hf/bin/python tests/golden/make_ernie45_moe.py

Two models, one with untied embeddings and two shared experts, one tied with one: one dense layer,
two MoE layers, 8 experts top-2, grouped queries, correction biases large enough to change choices.
Stored per model: the public weights, token ids, logits, loss, and gradients of some weights.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

TARGET = Path(__file__).with_name("ernie45_moe.npz")
COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 12,
    "moe_layer_start_index": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
VARIANTS = {
    "untied": {"tie_word_embeddings": False, "moe_num_shared_experts": 2},
    "tied": {"tie_word_embeddings": True, "moe_num_shared_experts": 1},
}
THETA = {"untied": 500_000.0, "tied": 10_000.0}
GRADIENTS = (
    "model.embed_tokens.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.1.mlp.gate.weight",
    "model.layers.2.mlp.gate.weight",
    "model.layers.2.mlp.experts.gate_up_proj",
    "model.layers.2.mlp.experts.down_proj",
    "model.layers.2.mlp.shared_experts.up_proj.weight",
    "model.layers.2.post_attention_layernorm.weight",
    "model.norm.weight",
)


def build(variant: str) -> Ernie4_5_MoeForCausalLM:
    rope = {"rope_type": "default", "rope_theta": THETA[variant]}
    config = Ernie4_5_MoeConfig(
        **COMMON,
        **VARIANTS[variant],
        rope_parameters=rope,
        use_cache=False,
        pad_token_id=None,  # else the embedding of id 0 gets no gradient
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = Ernie4_5_MoeForCausalLM(config).float()
    generator = torch.Generator().manual_seed(len(variant))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if "correction_bias" in name:
                values = 0.05 * noise
            elif "norm" in name:
                values = 1 + 0.2 * noise
            else:
                values = 0.25 * noise
            tensor.copy_(values.half())  # so that float16 stores them exactly, in half the space
    return model


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    for variant in VARIANTS:
        model = build(variant)
        ids = torch.from_numpy(np.random.default_rng(3).integers(0, COMMON["vocab_size"], (2, 24)))
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)  # the public names and layout
            weights = load_file(Path(folder) / "model.safetensors")
        for name, tensor in weights.items():
            arrays[f"{variant}/weights/{name}"] = tensor.numpy().astype(np.float16)
        named = dict(model.named_parameters())
        for name in GRADIENTS:
            arrays[f"{variant}/gradients/{name}"] = named[name].grad.numpy()
        arrays[f"{variant}/input_ids"] = ids.numpy().astype(np.uint8)
        arrays[f"{variant}/logits"] = output.logits.detach().numpy()
        arrays[f"{variant}/loss"] = output.loss.detach().numpy()
        config = {**COMMON, **VARIANTS[variant], "rope_theta": THETA[variant]}
        arrays[f"{variant}/config"] = np.array(json.dumps(config))
    np.savez_compressed(TARGET, **arrays)


if __name__ == "__main__":
    main()
