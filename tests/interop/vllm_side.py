"""Run by the other environment's python: greedy continuations by vLLM on the CPU.

    python vllm_side.py EXPORT JOB     JOB/inputs.json -> JOB/theirs.json

Shares no code with the project.
"""

import json
import sys
from pathlib import Path


def main(export: Path, job: Path) -> None:
    from vllm import LLM, SamplingParams

    inputs = json.loads((job / "inputs.json").read_text())
    llm = LLM(
        str(export),
        dtype="float32",
        enforce_eager=True,
        max_model_len=inputs["max_length"],
        max_num_seqs=8,
        disable_log_stats=True,
    )
    greedy = SamplingParams(temperature=0, max_tokens=inputs["new_tokens"])
    prompts = [{"prompt_token_ids": ids} for ids in inputs["prompts"]]
    outputs = [list(result.outputs[0].token_ids) for result in llm.generate(prompts, greedy)]
    model = llm.llm_engine.model_config.hf_config.architectures[0]
    (job / "theirs.json").write_text(json.dumps({"model": model, "outputs": outputs}))


if __name__ == "__main__":  # vLLM starts its engine in a process that imports this file again
    main(Path(sys.argv[1]), Path(sys.argv[2]))
