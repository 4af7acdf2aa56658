"""The quickstart's chain of stages, shrunk, through the real command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = [
    "data.sources.0.max_bytes=600000",
    "data.tokenizer.vocab_size=600",
    "data.max_seq_len=64",
    "stages.pretrain.model.hidden_size=48",
    "stages.pretrain.model.intermediate_size=64",
    "stages.pretrain.model.moe_intermediate_size=32",
    "stages.pretrain.train={max_steps: 12, global_batch_size: 8, learning_rate: 3e-3}",
    "stages.pretrain.eval.eval_steps=6",
    "stages.pretrain.eval.eval_rows=4",
    "stages.pretrain.eval.final_eval_rows=8",
    "stages.extract.extract.calibration_rows=4",
    "stages.extract.extract.eval_rows=8",
    "stages.midtrain.train={max_steps: 6, global_batch_size: 8, learning_rate: 1e-3}",
    "stages.midtrain.eval.eval_steps=3",
    "stages.midtrain.eval.eval_rows=4",
    "stages.midtrain.eval.final_eval_rows=8",
    "stages.samples.max_tokens=8",
    "monitor.sample_tokens=4",
]


def run_chain(output_dir: Path, *extra: str) -> str:
    """Run the chain to its end; returns what the terminal showed."""
    overrides = [*SMALL, f"run.output_dir={output_dir}", *extra]
    command = [sys.executable, "tools/train.py", "-c", "configs/quickstart.yaml"]
    for override in overrides:
        command += ["-o", override]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    run_chain(folder)
    return folder


def test_report_holds_every_figure(finished: Path) -> None:
    figures = json.loads((finished / "report.json").read_text())
    for key in ("full", "bigram", "xz", "extracted_before", "extracted_after", "subnet.small"):
        assert 0.5 < figures[f"bpb.{key}"] < 12, key
    assert figures["params.total"] > figures["params.active"] > 0
    assert figures["ratio.total"] == pytest.approx(0.36, abs=0.08)
    assert figures["ratio.active"] == pytest.approx(0.54, abs=0.08)
    assert figures["bpb.extracted_after"] < figures["bpb.extracted_before"]
    page = (finished / "report.md").read_text()
    for figure in finished.rglob("*.png"):
        assert figure.read_bytes()[:4] == b"\x89PNG"
    assert page.count(".png)") >= 3


def test_samples_come_from_each_model(finished: Path) -> None:
    samples = json.loads((finished / "samples" / "samples.json").read_text())
    assert {sample["model"] for sample in samples} == {"pretrain", "extract", "midtrain"}
    assert all(sample["text"] for sample in samples)


def test_finished_stages_are_skipped_and_changed_ones_run_again(finished: Path) -> None:
    weights = finished / "pretrain" / "model" / "model.safetensors"
    healed = finished / "midtrain" / "model" / "model.safetensors"
    before, healed_before = weights.stat().st_mtime_ns, healed.read_bytes()
    assert run_chain(finished).count("is done, skipped") == 6
    shown = run_chain(finished, "stages.midtrain.train.learning_rate=5e-4")
    assert shown.count("is done, skipped") == 3
    assert weights.stat().st_mtime_ns == before
    assert healed.read_bytes() != healed_before
