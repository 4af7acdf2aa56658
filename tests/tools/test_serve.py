"""tools/serve.py as a process: serves, says what it ignores, ends at a signal, reports errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays, save_model_dir

TOOL = Path(__file__).resolve().parents[2] / "tools" / "serve.py"
CONFIG = ModelConfig(
    vocab_size=400, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=48, moe_num_experts=4, moe_k=2,
    moe_intermediate_size=16, moe_num_shared_experts=1, moe_layer_start_index=1,
    max_position_embeddings=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    tokenizer = Tokenizer.train(["def main():\n    return 42\n"] * 20, 340)
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    arrays = model_arrays(ErnieMoeModel(CONFIG, seed=0))
    save_model_dir(folder / "model", arrays, CONFIG, folder / "tokenizer")
    return folder / "model"


def start(*argv: object) -> subprocess.Popen:
    command = [sys.executable, TOOL, *argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120  # the first start compiles operators
    while True:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "does not start"
            time.sleep(0.1)


def test_it_serves_until_a_signal(model_dir, tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = start("--model", model_dir, "--port", port, "--tensor_parallel_size", 1,
                    "--access-log", tmp_path / "log")  # fmt: skip
    try:
        wait_for(url, process)
        body = {"prompt": "def", "max_tokens": 5, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()
        assert answer["usage"]["completion_tokens"] == 5
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert "--tensor-parallel-size: without meaning" in err and "Traceback" not in err
    line = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert (line["path"], line["completion_tokens"]) == ("/v1/completions", 5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "/nowhere"], "/nowhere"),
        (["--model", "/nowhere", "--frobnicate"], "--frobnicate"),
        (["--model", "/nowhere", "--host", "0.0.0.0"], "--api-key"),
        (["--model", "/nowhere", "--load-strategy", "ipc"], "expected normal"),
    ],
)
def test_errors(argv, message):
    process = start(*argv, "--port", free_port())
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert message in err and "Traceback" not in err and out == ""
