"""A killed and resumed run is the run that was never killed: losses and weights, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 24
SETTINGS = {
    "data.sources.0.max_bytes": 300_000,
    "data.tokenizer.vocab_size": 512,
    "data.max_seq_len": 64,
    "model.hidden_size": 48,
    "model.intermediate_size": 64,
    "model.moe_intermediate_size": 32,
    "train.max_steps": STEPS,
    "train.micro_batch_size": 4,
    "train.moe_balance_loss_weight": 0.01,
    "checkpoint.save_steps": 3,
    "eval.eval_steps": 8,
    "eval.eval_rows": 4,
    "eval.final_eval_rows": 4,
    "monitor.logging_steps": 1,
    "monitor.peak_gflops": 50,
    "monitor.sample_tokens": 4,
}
TIMED = ("time", "throughput", "memory")
"""What a record says about the machine rather than about the run."""


def start(output_dir: Path, cache_dir: Path, threads: int, *extra: str) -> subprocess.Popen:
    overrides = [f"{key}={value}" for key, value in SETTINGS.items()]
    overrides += [f"run.output_dir={output_dir}", f"data.cache_dir={cache_dir}", *extra]
    command = [sys.executable, "tools/train.py", "-c", "configs/pretrain/debug.yaml"]
    for override in overrides:
        command += ["-o", override]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def read_records(output_dir: Path) -> list[dict]:
    """Everything logged, without what depends on the machine's speed."""
    records = []
    for line in (output_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        records.append({k: v for k, v in record.items() if k.split("/")[0] not in TIMED})
    return records


def wait_for_step(output_dir: Path, process: subprocess.Popen, step: int) -> None:
    """Return once `step` was logged, or the process has ended."""
    metrics = output_dir / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < deadline, f"step {step} was not logged in 120 s"
        lines = metrics.read_bytes().splitlines() if metrics.exists() else []
        if len(lines) > 1 and json.loads(lines[-2])["step"] >= step:
            return
        time.sleep(0.002)


def wait_for_unfinished_checkpoint(output_dir: Path, process: subprocess.Popen) -> None:
    """Return when a checkpoint is being written."""
    while process.poll() is None and not list((output_dir / "checkpoints").glob(".step-*")):
        time.sleep(0.0002)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    output_dir = tmp_path_factory.mktemp("straight") / "run"
    finish(start(output_dir, cache, threads=2))
    return output_dir


def assert_same_run(resumed: Path, straight: Path) -> None:
    assert [r["step"] for r in read_records(resumed)] == [r["step"] for r in read_records(straight)]
    for mine, theirs in zip(read_records(resumed), read_records(straight), strict=True):
        mine.pop("time", None), theirs.pop("time", None)
        assert mine == theirs
    for file in ("model/model.safetensors", f"checkpoints/step-{STEPS:08d}/optimizer.safetensors"):
        assert (resumed / file).read_bytes() == (straight / file).read_bytes(), file


def test_records_of_every_step_are_there(uninterrupted: Path) -> None:
    """The comparison below would say little about a run that logs little."""
    records = read_records(uninterrupted)
    losses = [record["loss/train"] for record in records if "loss/train" in record]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.5
    assert any("loss/axis/depth" in record for record in records)
    assert sum("eval/small/bpb" in record for record in records) == STEPS // 8
    assert len(list((uninterrupted / "checkpoints").iterdir())) == 2


def test_killed_at_random_moments_and_resumed(
    tmp_path: Path, cache: Path, uninterrupted: Path
) -> None:
    output_dir, rng, kills = tmp_path / "run", random.Random(0), 0
    for target in (2, 7, 13):
        process = start(output_dir, cache, 2)
        wait_for_step(output_dir, process, target)
        time.sleep(rng.random() * 0.1)
        process.kill()
        process.wait()
        kills += process.returncode == -signal.SIGKILL
    process = start(output_dir, cache, 2)
    wait_for_step(output_dir, process, 16)
    wait_for_unfinished_checkpoint(output_dir, process)
    process.kill()
    process.wait()
    kills += process.returncode == -signal.SIGKILL
    assert kills == 4, "the run ended before it was killed: the test shows nothing"
    assert "resumed after step" in finish(start(output_dir, cache, 2))
    assert not list((output_dir / "checkpoints").glob(".step-*"))
    assert_same_run(output_dir, uninterrupted)


def test_sigterm_saves_and_exits_with_130(tmp_path: Path, cache: Path, uninterrupted: Path) -> None:
    output_dir = tmp_path / "run"
    process = start(output_dir, cache, 2)
    wait_for_step(output_dir, process, 4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "checkpoint was saved" in " ".join(output.split())
    stopped = read_records(output_dir)[-1]["step"]
    assert stopped < STEPS
    assert (output_dir / f"checkpoints/step-{stopped:08d}/manifest.json").exists()
    assert f"resumed after step {stopped}" in finish(start(output_dir, cache, 2))
    assert_same_run(output_dir, uninterrupted)


def test_altered_newest_checkpoint_is_refused_and_the_one_before_is_used(
    tmp_path: Path, cache: Path, uninterrupted: Path
) -> None:
    output_dir = tmp_path / "run"
    process = start(output_dir, cache, 2)
    wait_for_step(output_dir, process, 7)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    newest, previous = sorted((output_dir / "checkpoints").iterdir(), reverse=True)
    with (newest / "model.safetensors").open("r+b") as stream:
        stream.truncate(1000)
    output = finish(start(output_dir, cache, 2))
    assert f"{newest.name}/model.safetensors" in "".join(output.split())
    assert f"resumed after step {int(previous.name.removeprefix('step-'))}" in output
    assert_same_run(output_dir, uninterrupted)


def test_finished_run_returns_and_a_longer_one_goes_on(
    tmp_path: Path, cache: Path, uninterrupted: Path
) -> None:
    weights = (uninterrupted / "model/model.safetensors").stat().st_mtime_ns
    assert "nothing to do" in finish(start(uninterrupted, cache, 2))
    assert (uninterrupted / "model/model.safetensors").stat().st_mtime_ns == weights
    output_dir = tmp_path / "run"
    finish(start(output_dir, cache, 1, "train.max_steps=4", "train.decay_steps=0"))
    output = finish(start(output_dir, cache, 1, "train.max_steps=6", "train.decay_steps=0"))
    assert "resumed after step 4 of 6" in output
    assert json.loads((output_dir / "summary.json").read_text())["steps"] == 6
