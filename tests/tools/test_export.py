"""tools/export.py as a user runs it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir

TOOL = Path(__file__).resolve().parents[2] / "tools" / "export.py"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    Tokenizer.train(["def main():\n    return 42\n" * 20], 300).save(folder / "tokenizer")
    config = ModelConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, moe_num_experts=4, moe_k=2,
        moe_intermediate_size=8, max_position_embeddings=64, num_nextn_predict_layers=1,
    )  # fmt: skip
    save_model_dir(folder / "model", ErnieMoeModel(config), config, folder / "tokenizer")
    return folder / "model"


@pytest.fixture
def tool(monkeypatch):
    specification = importlib.util.spec_from_file_location("export_tool", TOOL)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # main sets it; the old value comes back after
    return module


@pytest.fixture
def run(monkeypatch, capsys, tool):
    """run(options...): main in this process; (exit code, stdout, stderr)."""

    def call(*options: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["export.py", "--threads", "1", *map(str, options)])
        code = tool.run_main(tool.main)
        return int(code), *capsys.readouterr()

    return call


def test_as_a_process(run_tool, model_dir, tmp_path):
    ran = run_tool("export.py", "--model", model_dir, "--output", tmp_path / "out", "--check")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out" / "mtp" / "config.json").is_file()
    first, note, check = ran.stdout.strip().splitlines()
    assert first.startswith(f"{tmp_path / 'out'}: ") and "tensors" in first
    assert note.startswith("note: no tokenizer.model")
    assert check.startswith("check: ") and "logits are as they should be" in check


@pytest.mark.parametrize(
    "options",
    [
        ["--fp8"],
        ["--fp8", "--fp8-scales", "ue8m0"],
        ["--paddle-layout"],
        ["--dtype", "float32", "--max-shard-size", "10KB"],
    ],
)
def test_formats(run, model_dir, tmp_path, options):
    code, text, errors = run(
        "--model", model_dir, "--output", tmp_path / "out", "--check", *options
    )
    assert (code, errors) == (0, "")
    assert "check: " in text
    shards = len(list((tmp_path / "out").glob("*.safetensors")))
    assert (shards > 1) == ("--max-shard-size" in options)


def test_errors(run, model_dir, tmp_path):
    for options, message in (
        (["--model", "/nowhere", "--output", tmp_path / "out"], "/nowhere: not a model directory"),
        (["--model", model_dir, "--output", model_dir], "the model itself; give another folder"),
        (
            ["--model", model_dir, "--output", model_dir.parent],
            "holds files that are not an export",
        ),
        (
            ["--model", model_dir, "--output", tmp_path / "out", "--fp8-scales", "fp32"],
            "give --fp8 too",
        ),
    ):
        code, text, errors = run(*options)
        assert (code, text) == (2, "")
        assert message in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5GB", 5 * 10**9), ("1.5M", 1_500_000), ("20kb", 20_000), ("7", 7), ("2GiB", 2 * 10**9)],
)
def test_sizes(tool, text, expected):
    assert tool.size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "0", "-1", "5TB", "0.1"])
def test_sizes_that_are_none(run, capsys, model_dir, text):
    with pytest.raises(SystemExit) as left:
        run("--model", model_dir, "--output", "x", f"--max-shard-size={text}")
    assert left.value.code == 2
    assert "expected a size such as 5GB" in capsys.readouterr().err
