"""tools/extract.py as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.models.model_dir import read_model_config, verify_model_dir
from tests.elastic.model_dirs import write_model, write_text

TOOL = Path(__file__).resolve().parents[2] / "tools" / "extract.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with `text/` and `model/`."""
    path = tmp_path_factory.mktemp("parent")
    write_text(path / "text")
    write_model(path, path / "text")
    return path


def extract(made, output, *arguments):
    command = [sys.executable, str(TOOL), "--model", str(made / "model"), "--output", str(output)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def test_ratios_with_own_text(made, tmp_path):
    sizes = ["--total-ratio", "0.5", "--active-ratio", "0.6"]
    text = ["--data", str(made / "text"), "--calibration-rows", "8", "--seq-len", "32"]
    ran = extract(made, tmp_path / "small", *sizes, *text)
    assert ran.returncode == 0, ran.stderr
    verify_model_dir(tmp_path / "small")
    assert (tmp_path / "small" / "extraction.json").exists()
    assert "without embeddings" in ran.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


def test_sizes_without_importance(made, tmp_path):
    arguments = ["--subnet", "layers=0+2+4,experts=4,top_k=1", "--importance", "first"]
    ran = extract(made, tmp_path / "small", *arguments)
    assert ran.returncode == 0, ran.stderr
    config = read_model_config(tmp_path / "small")
    assert (config.num_hidden_layers, config.moe_num_experts, config.moe_k) == (3, 4, 1)
    again = extract(made, tmp_path / "small", "--subnet", "experts=3", "--importance", "first")
    assert again.returncode == 0, again.stderr
    assert read_model_config(tmp_path / "small").moe_num_experts == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --subnet, or both"),
        (["--total-ratio", "0.5"], "give either --subnet, or both"),
        (["--subnet", "full", "--total-ratio", "0.5"], "give either --subnet, or both"),
        (["--total-ratio", "1.5", "--active-ratio", "0.5"], "--total-ratio is 1.5"),
        (["--subnet", "layers=99", "--importance", "first"], "layers: 99, but the model has 5"),
        (["--subnet", "layer=3"], "cannot read 'layer=3'"),
        (["--subnet", "layers=3", "--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--subnet", "layers=3", "--seed", "-1"], "argument --seed: '-1'; expected a whole"),
        (["--subnet", "layers=3", "--seq-len", "7"], "argument --seq-len: '7'; expected a whole"),
    ],
)
def test_faulty_arguments_are_one_message_and_exit_code_2(made, tmp_path, arguments, message):
    ran = extract(made, tmp_path / "small", *arguments)
    assert ran.returncode == 2
    assert message in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "small").exists()


def test_a_folder_with_other_files_is_not_replaced(made, tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    ran = extract(made, tmp_path, "--subnet", "layers=3", "--importance", "first")
    assert ran.returncode == 2
    assert "not a model" in ran.stderr
    assert (tmp_path / "diary.txt").read_text() == "mine"
