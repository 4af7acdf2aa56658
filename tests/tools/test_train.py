"""tools/train.py as users call it: in its own process, from another folder, with their mistakes."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddle_ernie import __version__
from paddle_ernie.config.loader import load_config

ROOT = Path(__file__).resolve().parents[2]
DEBUG = ROOT / "configs" / "pretrain" / "debug.yaml"
SCREEN_LINES = 24
# Real text that every Python has, small enough to be ready in a second.
TEXT = f"data.sources=[{{path: {Path(asyncio.__file__).parent}, glob: '*.py'}}]"
SMALL = """\
stage: pretrain
run: {output_dir: out}
model: {hidden_size: 64}
data: {sources: [{format: python_stdlib}]}
train:
  max_steps: 20
"""
RunTool = Callable[..., "subprocess.CompletedProcess[str]"]
WriteYaml = Callable[..., Path]


def check_error(
    done: "subprocess.CompletedProcess[str]", code: int, *words: str, begun: bool = False
) -> None:
    """An error of one screen on stderr, no traceback; nothing on stdout if nothing was begun."""
    assert done.returncode == code, done.stderr
    assert (done.stdout != "") == begun and "Traceback" not in done.stderr
    assert done.stderr.startswith(("error: ", "usage: "))
    assert len(done.stderr.splitlines()) <= SCREEN_LINES
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("max_steps", "max_step"), [":6  train.max_step = 20", "did you mean `max_steps`?"]),
        (("64", "-64"), [":3  model.hidden_size = -64", "expected at least 8"]),
        (("20", "twenty"), [":6  train.max_steps = twenty", "expected an integer"]),
        (("pretrain", "pretrian"), [":1  stage = pretrian", "did you mean pretrain?"]),
        (("64}", "64"), [":4: not valid YAML", "which starts on line 3"]),
    ],
)
def test_mistakes_in_a_file(
    run_tool: RunTool, write_yaml: WriteYaml, change: tuple[str, str], words: list[str]
) -> None:
    path = write_yaml(SMALL.replace(*change))
    check_error(run_tool("train.py", "-c", path), 2, str(path), *words)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["config.yaml"]


def test_text_and_models_that_are_not_there(run_tool: RunTool, write_yaml: WriteYaml) -> None:
    path = write_yaml(SMALL.replace("format: python_stdlib", "path: corpsu"))
    (path.parent / "corpus").mkdir()
    words = [":4  data.sources.0.path = corpsu", "did you mean corpus?", f"in {path.parent}"]
    check_error(run_tool("train.py", "-c", path), 2, str(path), *words)
    path = write_yaml(SMALL.replace("model: {hidden_size: 64}", "init_from: none"))
    check_error(run_tool("train.py", "-c", path), 2, ":3  init_from = none", "no such model dir")
    assert not (path.parent / "out").exists()


def test_two_levels_of_bases(run_tool: RunTool, write_yaml: WriteYaml) -> None:
    write_yaml(SMALL, "a.yaml")
    write_yaml("base: a.yaml\n", "b.yaml")
    path = write_yaml("base: b.yaml\n", "c.yaml")
    check_error(run_tool("train.py", "-c", path), 2, "b.yaml:1", "at most one parent")


def test_a_missing_file(run_tool: RunTool, tmp_path: Path) -> None:
    check_error(run_tool("train.py", "-c", tmp_path / "x.yaml"), 2, "x.yaml: no such file")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "train.max_step=5"], ["-o train.max_step=5", "did you mean `max_steps`?"]),
        (["-o", "train"], ["-o train: expected KEY=VALUE"]),
        (["--role", "trainer"], ["--role trainer: stage pretrain expects no --role"]),
        (["--resume", "nowhere"], ["--resume nowhere: no such checkpoint"]),
        (["-o", "run.num_threads=1e9"], ["run.num_threads = 1000000000", "at most 4,096"]),
        (["-o", f"train.max_steps={'9' * 5000}"], ["a number of 5,000 digits is too long"]),
        (["--nonsense"], ["unrecognized arguments: --nonsense"]),
    ],
)
def test_mistakes_on_the_command_line(
    run_tool: RunTool, write_yaml: WriteYaml, arguments: list[str], words: list[str]
) -> None:
    path = write_yaml(SMALL)
    check_error(run_tool("train.py", "-c", path, *arguments), 2, *words)
    assert [entry.name for entry in path.parent.iterdir()] == ["config.yaml"]


def test_no_configuration(run_tool: RunTool) -> None:
    check_error(run_tool("train.py"), 2, "required: -c/--config")


def test_version_and_help(run_tool: RunTool) -> None:
    shown = run_tool("train.py", "--version")
    assert (shown.returncode, shown.stdout) == (0, f"paddle_ernie {__version__}\n")
    assert "--dry-run" in run_tool("train.py", "--help").stdout


def test_a_folder_below_a_file(run_tool: RunTool, write_yaml: WriteYaml, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = run_tool("train.py", "-c", write_yaml(SMALL), "-o", "run.output_dir=file/run")
    check_error(done, 2, "run.output_dir file/run: cannot be written: Not a directory")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`mount(options)`: a tmpfs of our own, unmounted afterwards; skips where not allowed."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"mount{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("mounting a file system needs root")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"mounting a file system is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_folder(
    run_tool: RunTool, write_yaml: WriteYaml, mount: Callable[[str], Path]
) -> None:
    folder = mount("ro,size=1m")
    done = run_tool("train.py", "-c", write_yaml(SMALL), "-o", f"run.output_dir={folder}/run")
    check_error(done, 2, f"{folder}/run: cannot be written: Read-only file system")


def test_a_folder_without_write_permission(
    run_tool: RunTool, write_yaml: WriteYaml, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    done = run_tool("train.py", "-c", write_yaml(SMALL), "-o", "run.output_dir=locked/run")
    check_error(done, 2, "cannot be written: Permission denied")


def test_dry_run_from_another_folder(run_tool: RunTool, tmp_path: Path) -> None:
    done = run_tool("train.py", "-c", DEBUG, "-o", "train.max_steps=33", "--dry-run")
    assert done.returncode == 0 and done.stderr == ""
    assert "max_steps: 33" in done.stdout and "tokens in 33 steps" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_short_run(run_tool: RunTool, tmp_path: Path) -> None:
    short = ["train.max_steps=3", "train.warmup_steps=0", "train.decay_steps=0"]
    overrides = [part for text in (TEXT, "run.output_dir=run", *short) for part in ("-o", text)]
    done = run_tool("train.py", "-c", DEBUG, *overrides)
    assert done.returncode == 0, done.stderr
    assert load_config(tmp_path / "run" / "config.yaml").train.max_steps == 3
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()

    changed = run_tool("train.py", "-c", DEBUG, *overrides, "-o", "run.seed=2")
    check_error(changed, 2, "run holds a run of another configuration", "run.seed: was 1, now 2")
    assert load_config(tmp_path / "run" / "config.yaml").run.seed == 1


@pytest.mark.parametrize("size", ["200k", "2m"])
def test_a_full_disk_while_text_is_prepared(
    run_tool: RunTool, mount: Callable[[str], Path], size: str
) -> None:
    folder = mount(f"size={size}")
    done = run_tool("train.py", "-c", DEBUG, "-o", f"run.output_dir={folder}/run")
    check_error(done, 1, str(folder), "full", begun=True)
    assert not list(folder.rglob("*.tmp")) and not (folder / "run" / "checkpoints").exists()


def test_a_full_disk_while_a_checkpoint_is_saved(
    run_tool: RunTool, mount: Callable[[str], Path]
) -> None:
    folder = mount("size=3m")  # the state of this model takes 4 MB
    arguments = ["-o", TEXT, "-o", f"run.output_dir={folder}/run", "-o", "data.cache_dir=cache"]
    done = run_tool("train.py", "-c", DEBUG, *arguments)
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr and "Traceback" not in done.stderr
    assert "space" in done.stderr and str(folder) in done.stderr
    assert not list((folder / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_the_same_command_goes_on(
    run_tool: RunTool, tmp_path: Path, number: signal.Signals
) -> None:
    endless = ["train.max_steps=100000", "checkpoint.save_steps=100000", "eval.eval_steps=100000"]
    settings = (TEXT, "run.output_dir=run", "monitor.logging_steps=1", *endless)
    overrides = [part for text in settings for part in ("-o", text)]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "train.py"), "-c", str(DEBUG), *overrides],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        limit = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text()) and time.monotonic() < limit:
            assert child.poll() is None, child.stderr and child.stderr.read()
            time.sleep(0.05)
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert f"{number.name}: stopping after the current step" in errors
    assert "Traceback" not in errors and "interrupted: " in errors
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    stopped_at = int(checkpoint.name.removeprefix("step-"))
    more = ["-o", f"train.max_steps={stopped_at + 20}"]
    done = run_tool("train.py", "-c", DEBUG, *overrides, *more)
    assert done.returncode == 0, done.stderr
    first = json.loads(metrics.read_text().splitlines()[0])
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert first["step"] <= stopped_at < last["step"] == stopped_at + 20
