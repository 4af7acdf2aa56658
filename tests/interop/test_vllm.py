"""vLLM on the CPU, a second independent reader, loads our exports and says what our models say.

Its CPU router takes no correction biases where scores are a softmax without groups (0.32.0), so the
mixture of experts compared here has none; transformers is the reader that checks them.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.export import export_model
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.convert.importing import read_model
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.decoding import generate
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_model_dir, save_model_dir
from paddle_ernie.utils.errors import InputError
from tests.interop.environments import ROOT, VLLM

pytestmark = pytest.mark.slow

NEW_TOKENS = 32
MAX_LENGTH = 256
FP32 = TargetFormat("float32")
TINY = ModelConfig(
    vocab_size=320,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,  # vLLM's attention on CPUs takes multiples of 32
    intermediate_size=96,
    moe_num_experts=8,
    moe_k=2,
    moe_intermediate_size=32,
    moe_num_shared_experts=1,
    max_position_embeddings=MAX_LENGTH,
    initializer_range=0.1,
    tie_word_embeddings=False,
)


def agree(model_dir: Path, job: Path, prompts: list[list[int]], architecture: str) -> int:
    """Export, let vLLM continue the prompts, compare; number of tokens that were compared."""
    VLLM.python()
    export_model(model_dir, job / "export", FP32, max_shard_bytes=10**9)
    inputs = {"prompts": prompts, "new_tokens": NEW_TOKENS, "max_length": MAX_LENGTH}
    (job / "inputs.json").write_text(json.dumps(inputs))
    VLLM.run("vllm_side.py", job / "export", job, VLLM_CPU_KVCACHE_SPACE="1")
    theirs = json.loads((job / "theirs.json").read_text())
    assert theirs["model"] == architecture
    model, eos = load_model_dir(model_dir), Tokenizer.load(model_dir).eos_id
    for prompt, expected in zip(prompts, theirs["outputs"], strict=True):
        settings = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "stop_ids": {eos}}
        ours = list(generate(model, prompt, **settings))
        assert ours == [token for token in expected if token != eos]
    return sum(map(len, theirs["outputs"]))


@pytest.mark.parametrize(
    ("changes", "architecture"),
    [
        ({}, "Ernie4_5_MoeForCausalLM"),
        ({"moe_num_experts": 0, "tie_word_embeddings": True}, "Ernie4_5ForCausalLM"),
    ],
)
def test_tiny_models(tmp_path, changes, architecture):
    model = ErnieMoeModel(TINY.model_copy(update=changes), seed=3)
    Tokenizer.train(["def main():\n    return 42\n" * 10], 320).save(tmp_path / "tokenizer")
    save_model_dir(tmp_path / "model", model, model.config, tmp_path / "tokenizer")
    prompts = np.random.default_rng(3).integers(40, 300, (4, 24)).tolist()
    prompts = [ids[: 6 * (row + 1)] for row, ids in enumerate(prompts)]
    assert agree(tmp_path / "model", tmp_path, prompts, architecture) > 40


def test_smollm2(tmp_path, monkeypatch):
    VLLM.python()
    monkeypatch.chdir(os.environ.get("PADDLE_ERNIE_SMOLLM2", ROOT))
    (tmp_path / "scratch").mkdir()
    try:
        imported = read_model("smollm2", tmp_path / "scratch")
    except InputError as error:
        pytest.skip(str(error))
    save_model_dir(tmp_path / "model", imported.arrays, imported.config, imported.tokenizer_dir)
    tokenizer = Tokenizer.load(tmp_path / "model")
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    texts = [
        "Once upon a time",
        *map(chat.format, ("What is the capital of France?", "Count to 9.")),
    ]
    prompts = [tokenizer.encode(text, allow_special=True) for text in texts]
    assert agree(tmp_path / "model", tmp_path, prompts, "Ernie4_5ForCausalLM") > 40
