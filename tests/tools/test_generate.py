"""tools/generate.py as a user runs it."""

import importlib.util
import io
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir

TOOL = Path(__file__).resolve().parents[2] / "tools" / "generate.py"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    """An untrained model whose vocabulary is padded past its tokenizer's."""
    folder = tmp_path_factory.mktemp("generate")
    tokenizer = Tokenizer.train(["def main():\n    return 42\n" * 20], 300)
    tokenizer.save(folder / "tokenizer")
    config = ModelConfig(
        vocab_size=1000, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, moe_num_experts=4, moe_k=2,
        moe_intermediate_size=8, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    save_model_dir(folder / "model", ErnieMoeModel(config), config, folder / "tokenizer")
    return folder / "model"


@pytest.fixture
def run(monkeypatch, capsys):
    """run(options..., stdin=b""): the tool's main in this process; (exit code, stdout, stderr)."""
    specification = importlib.util.spec_from_file_location("generate_tool", TOOL)
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # main sets it; the old value comes back after

    def call(*options: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["generate.py", "--threads", "1", *map(str, options)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = tool.run_main(tool.main)
        return int(code), *capsys.readouterr()

    return call


def test_a_seed_repeats_its_text_and_the_speed_is_on_stderr(model_dir, run):
    options = ["--model", model_dir, "--max-tokens", 12, "--temperature", 1.5, "--seed", 3]
    command = [sys.executable, TOOL, *options, "--prompt", "def main"]
    first = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("def main")
    assert len(first.stdout) > len("def main\n")
    assert "prompt of" in first.stderr and "tokens/s" in first.stderr
    code, text, _ = run(*options, "--prompt", "-", stdin=b"def main")
    assert (code, text) == (0, first.stdout)


def test_sub_models_answer_differently(model_dir, run):
    options = ["--model", model_dir, "--max-tokens", 12, "--temperature", 0, "--prompt", "def"]
    texts = set()
    for extra in ([], ["--moe-k", 1], ["--subnet", "layers=2,experts=2,top_k=2"]):
        code, text, errors = run(*options, *extra)
        assert code == 0, errors
        texts.add(text)
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/nowhere", "--prompt", "x"], "/nowhere: not a model directory"),
        (["--prompt", "x", "--moe-k", 9], "9 experts per token; expected 1 to 4"),
        (["--prompt", "x", "--subnet", "layers=9"], "layers"),
        (["--prompt", "x", "--temperature", -1], "temperature is -1.0"),
        (["--prompt", "def " * 200], "max_position_embeddings"),
    ],
)
def test_errors(model_dir, run, options, message):
    model = [] if "--model" in options else ["--model", model_dir]
    code, text, errors = run(*model, *options)
    assert code == 2
    assert text == ""
    assert message in errors


@pytest.mark.parametrize(
    ("option", "value"),
    [("--max-tokens", -5), ("--seed", -1), ("--seed", 10**30), ("--threads", 0), ("--moe-k", "x")],
)
def test_numbers_out_of_range(model_dir, run, capsys, option, value):
    with pytest.raises(SystemExit) as left:
        run("--model", model_dir, "--prompt", "x", option, value)
    assert left.value.code == 2
    assert f"argument {option}: '{value}'; expected a whole number" in capsys.readouterr().err


def test_a_run_folder_is_pointed_to_its_model(model_dir, run):
    code, _, errors = run("--model", model_dir.parent, "--prompt", "x")
    assert code == 2
    assert f"it has no config.json; give {model_dir}" in " ".join(errors.split())


def test_nothing_but_the_speed_is_on_stderr(model_dir):
    command = [sys.executable, TOOL, "--model", model_dir, "--prompt", "", "--max-tokens", "3"]
    ran = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=True
    )
    assert len(ran.stderr.splitlines()) == 1, ran.stderr


def test_ctrl_c_keeps_the_text_so_far(model_dir):
    command = [sys.executable, TOOL, "--model", model_dir, "--prompt", "def main", "--threads", "1"]
    command += ["--max-tokens", "56", "--temperature", "2", "--top-p", "1"]
    slow = (
        "import sys, time, runpy; from paddle_ernie.models import decoding as d; old = d.sample\n"
    )
    slow += "d.sample = lambda *a: (time.sleep(0.2), old(*a))[1]; sys.argv = sys.argv[1:]\n"
    slow += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", slow, *map(str, command[1:])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TOOL.parents[1], bufsize=0
    )
    shown = b""
    while len(shown) < len("def main") + 2:
        shown += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (shown + rest).endswith(b"\n")
    assert b"Traceback" not in errors and b"prompt of" in errors


def test_stdin_that_is_not_utf8(model_dir, run):
    code, _, errors = run("--model", model_dir, "--prompt", "-", stdin=b"ab\xff")
    assert code == 2
    assert "not UTF-8 at byte 2" in errors


def test_a_damaged_model_is_a_failure(model_dir, run, tmp_path):
    damaged = shutil.copytree(model_dir, tmp_path / "damaged")
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[:-1])
    code, _, errors = run("--model", damaged, "--prompt", "x")
    assert code == 1
    assert "model.safetensors" in errors


def test_a_chat_from_a_pipe(model_dir, run):
    code, text, errors = run("--model", model_dir, "--chat", "--max-tokens", 4, stdin=b"def\n")
    assert code == 0, errors
    assert "positions used" in text
