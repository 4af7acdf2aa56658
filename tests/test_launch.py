"""Before a stage starts: a usable folder, the same run as before, its configuration saved."""

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paddle_ernie import launch
from paddle_ernie.config.loader import load_config
from paddle_ernie.config.stages import STAGES, StageConfig
from paddle_ernie.utils.errors import ConfigError, InputError
from paddle_ernie.utils.manifest import write_manifest
from paddle_ernie.utils.options import RunOptions

ROOT = Path(__file__).resolve().parents[1]
DEBUG = ROOT / "configs" / "pretrain" / "debug.yaml"


def config_for(folder: Path, *overrides: str) -> StageConfig:
    return load_config(DEBUG, [f"run.output_dir={folder}", *overrides])


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run folder with a checkpoint."""
    folder = tmp_path / "run"
    launch.prepare_folder(config_for(folder), RunOptions())
    (folder / "checkpoints" / "step-00000010").mkdir(parents=True)
    return folder


def test_every_stage_has_a_runner() -> None:
    assert set(launch.STAGE_RUNNERS) == set(STAGES)
    assert set(launch.STAGE_ROLES) <= set(STAGES)


def test_the_resolved_configuration_is_saved(tmp_path: Path) -> None:
    config = config_for(tmp_path / "a" / "b", "train.max_steps=70")
    launch.prepare_folder(config, RunOptions())
    assert load_config(tmp_path / "a" / "b" / "config.yaml") == config
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["config.yaml"]


def test_a_stage_is_called_with_threads_set_and_the_folder_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(config: StageConfig, options: RunOptions) -> None:
        seen.update(config=config, options=options, threads=os.environ["OMP_NUM_THREADS"])
        seen["saved"] = load_config(config.run.output_dir / "config.yaml")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(launch.STAGE_RUNNERS, "pretrain", run)
    config, shown = config_for(tmp_path / "run", "run.num_threads=3"), io.StringIO()
    options = RunOptions(console=Console(file=shown, width=40))
    launch.run_stage(config, options)
    first, last = shown.getvalue().splitlines()
    assert first == f"pretrain in {tmp_path}/run, 3 threads"
    assert last.startswith("done in ") and last.endswith(f"everything is in {tmp_path}/run")
    assert seen == {"config": config, "options": options, "threads": "3", "saved": config}


def test_a_run_goes_on_with_other_length_logging_saving_and_evaluation(
    begun: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("paddle_ernie")
    logger.propagate, before = True, logger.propagate
    config = config_for(begun, "train.max_steps=40", "checkpoint.keep=9", "eval.subnets={}")
    with caplog.at_level(logging.INFO, logger="paddle_ernie"):
        launch.prepare_folder(config, RunOptions())
    logger.propagate = before
    assert "train.max_steps: was 20, now 40" in caplog.text
    assert load_config(begun / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("run.seed=2", "run.seed: was 1, now 2"),
        ("model.moe_k=3", "model.moe_k: was 2, now 3"),
        ("data.max_seq_len=64", "data.max_seq_len: was 128, now 64"),
        ("train.global_batch_size=4", "train.global_batch_size: was 8, now 4"),
        ("elastic=null", "elastic: was {"),
    ],
)
def test_a_run_of_another_configuration_is_not_continued(
    begun: Path, override: str, line: str
) -> None:
    saved = (begun / "config.yaml").read_text()
    with pytest.raises(ConfigError) as caught:
        launch.prepare_folder(config_for(begun, override), RunOptions())
    text = str(caught.value)
    assert text.startswith(f"{begun} holds a run of another configuration:\n  {line}")
    assert "--resume never" in text and "run.output_dir" in text
    assert (begun / "config.yaml").read_text() == saved


def test_many_differences_fit_a_screen(begun: Path) -> None:
    keys = ["hidden_size=32", "num_hidden_layers=2", "intermediate_size=9", "moe_num_experts=4"]
    keys += ["moe_k=1", "moe_intermediate_size=9", "moe_num_shared_experts=0", "rope_theta=9"]
    keys += ["rms_norm_eps=1e-3", "tie_word_embeddings=false", "initializer_range=1"]
    overrides = [f"model.{key}" for key in keys]
    with pytest.raises(ConfigError, match="and 3 more") as caught:
        launch.prepare_folder(
            config_for(begun, "elastic=null", "eval.subnets={}", *overrides[:10]), RunOptions()
        )
    assert len(str(caught.value).splitlines()) < 15


@pytest.mark.parametrize("resume", ["never", "path"])
def test_starting_over_or_naming_a_checkpoint_overrules(begun: Path, resume: str) -> None:
    if resume == "path":
        resume = str(begun / "checkpoints" / "step-00000010")
        write_manifest(Path(resume))
    config = config_for(begun, "run.seed=2")
    launch.prepare_folder(config, RunOptions(resume=resume))
    assert load_config(begun / "config.yaml") == config


def test_a_folder_in_which_nothing_came_of_a_run_is_taken_over(tmp_path: Path) -> None:
    launch.prepare_folder(config_for(tmp_path), RunOptions())
    launch.prepare_folder(config_for(tmp_path, "run.seed=2"), RunOptions())
    assert load_config(tmp_path / "config.yaml").run.seed == 2


@pytest.mark.parametrize("content", [b"", b"a: [1", b"\xff\xfe", b"- 1\n"])
def test_a_damaged_saved_configuration_does_not_stop_a_run(begun: Path, content: bytes) -> None:
    (begun / "config.yaml").write_bytes(content)
    launch.prepare_folder(config_for(begun), RunOptions())
    assert load_config(begun / "config.yaml") == config_for(begun)


def test_a_pipeline_compares_its_stages_itself_but_not_a_run_of_another_kind(begun: Path) -> None:
    quickstart = ROOT / "configs" / "quickstart.yaml"
    pipeline = load_config(quickstart, [f"run.output_dir={begun}"])
    with pytest.raises(ConfigError, match="stage: was pretrain, now pipeline"):
        launch.prepare_folder(pipeline, RunOptions())
    folder = begun.parent / "pipeline"
    for seed in (1, 2):
        overrides = [f"run.output_dir={folder}", f"run.seed={seed}"]
        launch.prepare_folder(load_config(quickstart, overrides), RunOptions())
        (folder / "pretrain").mkdir(exist_ok=True)
        (folder / "pretrain" / "stage.json").write_text("{}")
        assert launch.is_started(folder)


def test_an_output_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/run")):
        with pytest.raises(InputError, match=r"run.output_dir .* cannot be written"):
            launch.prepare_folder(config_for(folder), RunOptions())
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("resume", "words"),
    [("nowhere", "no such checkpoint"), ("", "no such checkpoint"), ("/", "not a checkpoint")],
)
def test_a_checkpoint_to_resume_from_must_exist(tmp_path: Path, resume: str, words: str) -> None:
    with pytest.raises(InputError, match=f"--resume {resume}: {words}"):
        launch.prepare_folder(config_for(tmp_path / "run"), RunOptions(resume=resume))
    assert not (tmp_path / "run").exists()


def test_a_pipeline_takes_no_checkpoint_and_leaves_nothing(begun: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    config = load_config(ROOT / "configs" / "quickstart.yaml", [f"run.output_dir={folder}"])
    with pytest.raises(InputError, match="stage pipeline expects --resume auto or never"):
        launch.prepare_folder(config, RunOptions(resume=str(begun / "checkpoints")))
    assert not folder.exists()


@pytest.mark.parametrize("resume", ["auto", "never"])
@pytest.mark.parametrize("name", ["config.yaml", "model/notes.txt", "checkpoints/mine.bin"])
def test_files_that_no_run_wrote_are_not_replaced(tmp_path: Path, name: str, resume: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("stage: pretrain  # my own notes\n")
    with pytest.raises(InputError, match=f"holds {name.split('/')[0]}, which no run wrote"):
        launch.prepare_folder(config_for(tmp_path), RunOptions(resume=resume))
    assert (tmp_path / name).read_text() == "stage: pretrain  # my own notes\n"


def test_a_run_folder_may_be_run_from_its_own_configuration(begun: Path) -> None:
    saved = (begun / "config.yaml").read_text()
    for resume in ("auto", "never"):
        launch.prepare_folder(load_config(begun / "config.yaml"), RunOptions(resume=resume))
    assert (begun / "config.yaml").read_text() == saved


def test_a_logging_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    config = config_for(tmp_path / "run", f"run.logging_dir={tmp_path}/file")
    with pytest.raises(InputError, match=r"run.logging_dir .*/file: cannot be written"):
        launch.prepare_folder(config, RunOptions())


def test_importing_paddle_is_silent_but_for_real_warnings(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom paddle_ernie.launch import import_paddle\nimport_paddle()\n"
        "import paddle\nprint(paddle.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("3.1.0\n", "")


def test_other_notices_of_an_import_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "paddle.py").write_text(
        "import sys\n"
        "print('PLEASE USE OMP_NUM_THREADS WISELY.', file=sys.stderr)\n"
        "print('the driver is too old', file=sys.stderr)\n"
        "raise ImportError('no driver')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    with pytest.raises(ImportError, match="no driver"):
        launch.import_paddle()
    assert capsys.readouterr().err == "the driver is too old\n"


def test_roles(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    launch.check_role(config, None)
    with pytest.raises(InputError, match="--role trainer: stage pretrain expects no --role"):
        launch.check_role(config, "trainer")
