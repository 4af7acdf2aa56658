"""Run by the other environment's python: SmolLM2 as transformers reads it from its GGUF file.

    python smollm2_side.py GGUF JOB     JOB/inputs.json -> JOB/theirs.npz, JOB/theirs.json

Shares no code with the project.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def main(gguf: Path, job: Path) -> None:
    inputs = json.loads((job / "inputs.json").read_text(encoding="utf-8"))
    given = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **given)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **given).eval()
    assert type(model).__name__ == "LlamaForCausalLM", type(model)
    logits, chats = {}, []
    for question in inputs["questions"]:
        turns = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        start = prompt["input_ids"].shape[1]
        reply = model.generate(**prompt, do_sample=False, max_new_tokens=inputs["new_tokens"])
        chats.append(
            {
                "prompt": prompt["input_ids"][0].tolist(),
                "reply": reply[0, start:].tolist(),
                "text": tokenizer.decode(reply[0, start:], skip_special_tokens=True),
            }
        )
    model = model.double()  # fp32 errs by 8e-5 of its own, as much as what is looked for
    for number, text in enumerate(inputs["texts"]):
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        logits[f"ids_{number}"] = ids[0].numpy()
        logits[f"logits_{number}"] = model(ids).logits[0].numpy()
    encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in inputs["encode"]]
    np.savez(job / "theirs.npz", **logits)
    (job / "theirs.json").write_text(json.dumps({"chats": chats, "encoded": encoded}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
