"""Training steps of transformers' Ernie4_5_Moe: forward, backward, fused AdamW."""

import time
from pathlib import Path

import numpy as np
import torch
from protocol import peak_bytes, summary
from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

WARMUP_STEPS = 2
MAX_SECONDS = 60
PASSED_ON = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "tie_word_embeddings",
    "moe_intermediate_size",
    "moe_k",
    "moe_num_experts",
    "moe_num_shared_experts",
    "moe_layer_start_index",
)
"""Keys of our model configuration, which has these names from theirs."""


def make_config(model, experts):
    """Their configuration of our model, with one of their implementations of experts."""
    config = Ernie4_5_MoeConfig(
        **{key: model[key] for key in PASSED_ON},
        rope_parameters={"rope_type": "default", "rope_theta": model["rope_theta"]},
        bos_token_id=None,
        eos_token_id=None,  # generation goes on to the length asked for
        pad_token_id=None,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    config._experts_implementation = experts
    return config


def random_ids(model, rows, seq_len):
    """The token ids of train.bench.random_batch."""
    ids = np.random.default_rng(0).integers(0, model["vocab_size"], (rows, seq_len), np.int64)
    return torch.from_numpy(ids)


def measure_steps(request):
    """Seconds of a step; one mode of one model."""
    torch.manual_seed(0)
    mode = request["mode"]
    model = Ernie4_5_MoeForCausalLM(make_config(request["model"], mode["experts"])).train()
    if mode["weights"] == "bf16":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids = random_ids(request["model"], request["rows"], request["seq_len"])
    seconds = []
    for _ in range(WARMUP_STEPS + request["steps"]):
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode["autocast"]):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
        if sum(seconds) > MAX_SECONDS and len(seconds) > 1:
            break  # a mode this slow is out of the race: two steps show it
    return {
        **summary(seconds[WARMUP_STEPS:] or seconds[-1:]),
        "peak_bytes": peak_bytes(),
        "loss": float(loss),
    }


def same_model(request):
    """Parameters, loss and gradient norm with the weights of a folder, in fp32."""
    config = make_config(request["model"], "eager")
    Path(request["weights"], "generation_config.json").write_text("{}")  # it insists on one
    model = Ernie4_5_MoeForCausalLM.from_pretrained(
        request["weights"], config=config, dtype=torch.float32, local_files_only=True
    ).train()
    ids = random_ids(request["model"], request["rows"], request["seq_len"])
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    # Loading makes the routers' bias trainable, but no gradient reaches it.
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in trained])
    return {
        "parameters": sum(parameter.numel() for parameter in trained),
        "loss": loss.item(),
        "grad_norm": norm.item(),
    }
