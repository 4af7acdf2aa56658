"""transformers, in an environment of its own, reads what we export; we read what it saves."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.check import check_export
from paddle_ernie.convert.export import export_model
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.convert.special_ids import read_special_ids
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.elastic.extract import extract_model
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.decoding import generate
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, save_model_dir

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4  # fp32 on both sides, sums in another order
NEW_TOKENS = 24
TEXT = "def main():\n    return 42  # 你好\n<|endoftext|>"
TINY = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 16,
    "moe_num_shared_experts": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
WHOLE_BLOCKS = {
    "hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.05,
}  # fmt: skip
FULL = TargetFormat("float32")


@dataclass(frozen=True)
class Case:
    """A model and how it is exported."""

    changes: dict = field(default_factory=dict)
    target: TargetFormat = FULL
    subnet: Subnet | None = None


CASES = {
    "untied": Case(),
    "tied": Case({"tie_word_embeddings": True}),
    "mtp": Case({"num_nextn_predict_layers": 1}),
    "dense_first_layers": Case({"moe_layer_start_index": 2, "rope_theta": 12345.0}),
    "all_moe": Case({"moe_layer_start_index": 0, "moe_num_shared_experts": 0}),
    "all_dense": Case({"moe_num_experts": 0, "num_nextn_predict_layers": 1}),
    "wide_heads": Case({"head_dim": 16, "rms_norm_eps": 1e-3}),
    "bf16": Case(target=TargetFormat()),
    "extracted": Case(
        subnet=Subnet(
            layers=(0, 1, 3),
            experts=((), (0, 2, 3, 6), (1, 4, 5, 7)),
            top_k=(0, 1, 1),
        )
    ),
    "fp8": Case(
        {**WHOLE_BLOCKS, "head_dim": 64, "num_nextn_predict_layers": 1}, TargetFormat(fp8=True)
    ),
    "fp8_dense_powers_of_two": Case(
        {**WHOLE_BLOCKS, "head_dim": 64, "moe_num_experts": 0},
        TargetFormat(fp8=True, power_of_two_scales=True),
    ),
    "fp8_partial_blocks": Case(
        {"hidden_size": 160, "intermediate_size": 200, "initializer_range": 0.05},
        TargetFormat("float32", fp8=True),
    ),
}


def make_model(case: Case) -> ErnieMoeModel:
    model = ErnieMoeModel(ModelConfig(**{**TINY, **case.changes}), seed=3)
    rng = np.random.default_rng(3)
    for bias in model.correction_biases().values():
        bias.set_value(rng.normal(0, 0.1, bias.shape).astype(np.float32))
    return model if case.subnet is None else extract_model(model, case.subnet)


@pytest.fixture(scope="module")
def job(tmp_path_factory, transformers_side) -> Path:
    """All cases exported, and read by the other side in one process."""
    job = tmp_path_factory.mktemp("exports")
    tokenizer = Tokenizer.train([TEXT * 10], 320)
    tokenizer.save(job / "tokenizer")
    for name, case in CASES.items():
        model, folder = make_model(case), job / name
        save_model_dir(folder / "model", model, model.config, job / "tokenizer")
        export_model(folder / "model", folder / "export", case.target, max_shard_bytes=100_000)
        ids = np.random.default_rng(7).integers(40, 300, (3, 33))
        np.savez(
            folder / "inputs.npz", ids=ids, new_tokens=NEW_TOKENS, text=TEXT,
            whole_blocks="hidden_size" in case.changes and not case.changes["hidden_size"] % 128,
        )  # fmt: skip
    transformers_side("read", job)
    return job


@pytest.fixture(scope="module")
def results(job) -> Callable[[str], tuple[ErnieMoeModel, dict, dict]]:
    """results(case): (the model the export holds, what went in, what came out)."""

    def read(name: str) -> tuple[ErnieMoeModel, dict, dict]:
        case = CASES[name]
        if case.target == FULL:
            model = make_model(case)
        else:  # rounded: what our own reader makes of the files
            imported = read_hf(job / name / "export")
            model = ErnieMoeModel(imported.config, seed=None)
            load_arrays(model, imported.arrays)
        with (
            np.load(job / name / "inputs.npz") as inputs,
            np.load(job / name / "theirs.npz") as out,
        ):
            return model, dict(inputs), dict(out)

    return read


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_used_and_logits_agree(results, name):
    model, inputs, theirs = results(name)
    moe = bool(model.config.moe_layers)
    assert theirs["class"] == ("Ernie4_5_MoeForCausalLM" if moe else "Ernie4_5ForCausalLM")
    assert json.loads(str(theirs["faults"])) == {}
    ours = model.logits(inputs["ids"]).numpy()
    assert np.abs(ours).max() > 0.5
    assert np.abs(ours - theirs["logits"]).max() < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_greedy_texts_agree(results, job, name):
    model, inputs, theirs = results(name)
    eos = read_special_ids(job / "tokenizer").eos
    assert tuple(theirs["eos"]) == eos
    for prompt, expected in zip(inputs["ids"], theirs["greedy"], strict=True):
        ours = list(generate(model, prompt, max_new_tokens=NEW_TOKENS, temperature=0, stop_ids=eos))
        assert ours == [token for token in expected if token >= 0 and token not in eos]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.target.fp8])
def test_transformers_multiplies_fp8_out_as_torch_does(results, name):
    """On a CPU it dequantises; matrices with partial blocks it gets wrong, and a note says so."""
    _, inputs, theirs = results(name)
    if inputs["whole_blocks"]:
        assert np.abs(theirs["own_fp8_logits"] - theirs["logits"]).max() < TOLERANCE
    else:
        assert "own_fp8_logits" not in theirs


@pytest.mark.parametrize("name", CASES)
def test_our_own_check_passes(job, name):
    assert check_export(job / name / "model", job / name / "export", CASES[name].target).logits


def test_tokenizer_and_chat_template(results, job):
    _, _, theirs = results("untied")
    tokenizer = Tokenizer.load(job / "tokenizer")
    assert theirs["token_ids"].tolist() == tokenizer.encode(TEXT, allow_special=True)
    assert str(theirs["chat"]).startswith("<|turn_start|>user\n2 + 3?<|turn_end|>")


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_we_read_what_transformers_saves(tmp_path_factory, transformers_side, name):
    job = tmp_path_factory.getbasetemp() / "saved"
    if not job.exists():
        job.mkdir()
        transformers_side("write", job)
    imported = read_hf(job / name / "saved")
    assert imported.notes == () and imported.tokenizer_dir is None
    model = ErnieMoeModel(imported.config, seed=None)
    load_arrays(model, imported.arrays)
    with np.load(job / name / "theirs.npz") as theirs:
        ours = model.logits(theirs["ids"]).numpy()
        assert np.abs(ours - theirs["logits"]).max() < TOLERANCE
