"""Run by the other environment's python: what transformers makes of exports.

    python transformers_side.py read JOB     JOB/case/{export/, inputs.npz} -> JOB/case/theirs.npz
    python transformers_side.py write JOB    JOB/{moe,dense}/{saved/, theirs.npz}, random models

Keys that are missing or left over are recorded as text. Shares no code with the project.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
)

BLOCK = 128
SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
MOE_SIZES = {
    "moe_intermediate_size": 16,
    "moe_k": 2,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0},
}


def main(command: str, job: Path) -> None:
    torch.manual_seed(0)
    if command == "read":
        for case in sorted(path for path in job.iterdir() if (path / "export").is_dir()):
            read(case)
    else:
        write(job / "moe", Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(**SIZES, **MOE_SIZES)))
        write(job / "dense", Ernie4_5ForCausalLM(Ernie4_5Config(**SIZES, head_dim=16)))


def read(case: Path) -> None:
    """Logits, greedy continuations and token ids of one export."""
    with np.load(case / "inputs.npz") as file:
        inputs = dict(file)
    export = case / "export"
    results, loadable = {}, export
    if "quantization_config" in json.loads((export / "config.json").read_text()):
        loadable = plain_copy(export, case / "plain")
        if bool(inputs["whole_blocks"]):  # else transformers misplaces the blocks
            results["own_fp8_logits"] = logits(load(export)[0], inputs["ids"])
    model, info = load(loadable)
    faults = {name: sorted(map(str, found)) for name, found in info.items() if found}
    tokenizer = AutoTokenizer.from_pretrained(export)
    turns = [{"role": "user", "content": "2 + 3?"}]
    results |= {
        "class": np.array(type(model).__name__),
        "faults": np.array(json.dumps(faults)),
        "logits": logits(model, inputs["ids"]),
        "greedy": greedy(model, inputs["ids"], int(inputs["new_tokens"])),
        "eos": np.array(model.generation_config.eos_token_id),
        "token_ids": np.array(tokenizer(str(inputs["text"]), add_special_tokens=False).input_ids),
        "chat": np.array(tokenizer.apply_chat_template(turns, tokenize=False)),
    }
    np.savez(case / "theirs.npz", **results)


def write(folder: Path, model: torch.nn.Module) -> None:
    """Save a random model whose correction biases matter, and its logits."""
    for name, buffer in model.named_parameters():
        if "e_score_correction_bias" in name:
            buffer.data.normal_(0, 0.1)
    model.save_pretrained(folder / "saved", max_shard_size="20KB")
    ids = np.random.default_rng(1).integers(3, SIZES["vocab_size"], (2, 40))
    np.savez(folder / "theirs.npz", ids=ids, logits=logits(model.eval(), ids))


def load(folder: Path) -> tuple[torch.nn.Module, dict]:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    return model.eval(), info


def plain_copy(export: Path, folder: Path) -> Path:
    """The same checkpoint with FP8 matrices multiplied out, by torch's own conversion from E4M3."""
    folder.mkdir()
    config = json.loads((export / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text((export / "generation_config.json").read_text())
    stored = {}
    for path in sorted(export.glob("*.safetensors")):
        stored |= load_file(path)
    plain = {}
    for name, value in stored.items():
        if value.dtype == torch.float8_e4m3fn:
            scales = stored[f"{name}_scale_inv"].repeat_interleave(BLOCK, 0)
            scales = scales.repeat_interleave(BLOCK, 1)[: value.shape[0], : value.shape[1]]
            value = value.to(torch.float32) * scales
        if not name.endswith("_scale_inv"):
            plain[name] = value.to(torch.float32)
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(ids)).logits.numpy()


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: np.ndarray, new_tokens: int) -> np.ndarray:
    """Continuations of each row alone, -1 after the end."""
    rows = np.full((len(ids), new_tokens), -1)
    for row, prompt in enumerate(ids):
        text = model.generate(
            torch.from_numpy(prompt[None]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=new_tokens,
        )[0, len(prompt) :]
        rows[row, : len(text)] = text.numpy()
    return rows


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
