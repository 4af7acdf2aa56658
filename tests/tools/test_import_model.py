"""tools/import_model.py: once as a user runs it, then its main function in this process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import load_model_dir, read_model_config
from paddle_ernie.utils.cli import run_main
from tests.convert.tiny_gguf import TEMPLATE, vocabulary, write_gguf
from tests.convert.tiny_llama import logits, make_config, make_weights, write_folder
from tools.import_model import main

CONFIG = make_config(vocab_size=len(vocabulary()[0]))
IDS = np.random.default_rng(5).integers(0, CONFIG["vocab_size"], 30)


@pytest.fixture
def run_import(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """`run_import("--model", path, ...)`: exit code, stdout and stderr with single spaces."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["import_model.py", *map(str, arguments)])
        try:
            code = run_main(main)
        except SystemExit as error:  # of the argument parser
            code = int(error.code or 0)
        shown = capsys.readouterr()
        return code, " ".join(shown.out.split()), " ".join(shown.err.split())

    return run


@pytest.fixture
def gguf_file(tmp_path):
    return write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG))


def test_a_gguf_file_becomes_an_upcycled_model_that_generates(run_tool, gguf_file, tmp_path):
    output = tmp_path / "out" / "moe"
    arguments = ("--upcycle", 4, "--top-k", 2)
    ran = run_tool("import_model.py", "--model", gguf_file, "--output", output, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert "3 layers (2 with 4 experts, top-2)" in ran.stdout
    assert "with chat template" in ran.stdout
    found = load_model_dir(output).logits(IDS[None]).numpy()[0]
    np.testing.assert_allclose(found, logits(CONFIG, make_weights(CONFIG), IDS), atol=1e-4)
    tokenizer = Tokenizer.load(output)
    assert (tokenizer.eos_id, tokenizer.config["chat_template"]) == (2, TEMPLATE)
    prompt = ("--prompt", "the and", "--temperature", 0, "--max-tokens", 4)
    spoken = run_tool("generate.py", "--model", output, *prompt)
    assert spoken.returncode == 0, spoken.stderr
    assert spoken.stdout.startswith("the and")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["moe"]


def test_a_folder_with_its_template_in_a_file_of_its_own(run_import, gguf_file, tmp_path):
    assert run_import("--model", gguf_file, "--output", tmp_path / "made")[0] == 0
    folder = write_folder(tmp_path / "hf", CONFIG, make_weights(CONFIG))
    (tmp_path / "made" / "tokenizer.json").rename(folder / "tokenizer.json")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    code, _, errors = run_import("--model", folder, "--output", tmp_path / "out")
    assert code == 0, errors
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert (tokenizer.eos_id, tokenizer.config["chat_template"]) == (2, "{{ messages }}")
    assert not read_model_config(tmp_path / "out").moe_layers


def test_a_given_tokenizer(run_import, gguf_file, tmp_path):
    assert run_import("--model", gguf_file, "--output", tmp_path / "made")[0] == 0
    other = {"tokenizer.ggml.model": "llama"}
    path = write_gguf(tmp_path / "other.gguf", CONFIG, make_weights(CONFIG), extra=other)
    code, _, errors = run_import("--model", path, "--output", tmp_path / "out")
    assert code == 2
    assert "of type 'llama'" in errors and "give --tokenizer" in errors
    given = ("--tokenizer", tmp_path / "made")
    code, shown, errors = run_import("--model", path, "--output", tmp_path / "out", *given)
    assert code == 0, errors
    assert "note: " in shown
    assert Tokenizer.load(tmp_path / "out").eos_id == 2


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(run_import, tmp_path):
    config = make_config(vocab_size=CONFIG["vocab_size"] - 1)
    path = write_gguf(tmp_path / "m.gguf", config, make_weights(config))
    code, _, errors = run_import("--model", path, "--output", tmp_path / "out")
    assert code == 2
    assert "the tokenizer has 269 ids, the model 268" in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--upcycle", "4"], "give --upcycle and --top-k together"),
        (["--top-k", "4"], "give --upcycle and --top-k together"),
        (["--upcycle", "4", "--top-k", "5"], "top-k is 5; expected 1 to 4"),
        (["--upcycle", "0", "--top-k", "1"], "argument --upcycle: '0'; expected a whole number"),
        (["--model", "/nowhere/at/all"], "/nowhere/at/all: no such file or folder"),
        (["--output", str(Path(__file__).parent)], "holds files that are not a model"),
    ],
)
def test_faults_are_one_message_and_exit_code_2(
    run_import, gguf_file, tmp_path, arguments, message
):
    code, _, errors = run_import("--model", gguf_file, "--output", tmp_path / "out", *arguments)
    assert code == 2
    assert message in errors
    assert not (tmp_path / "out").exists()
