"""Before a stage starts: a usable folder, the same run as before, its configuration saved."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from paddle_ernie import launch
from paddle_ernie.config.loader import load_config
from paddle_ernie.config.stages import STAGES, StageConfig
from paddle_ernie.utils.errors import ConfigError, InputError
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
    config, options = config_for(tmp_path / "run", "run.num_threads=3"), RunOptions()
    launch.run_stage(config, options)
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


def test_a_checkpoint_to_resume_from_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--resume nowhere: no such checkpoint"):
        launch.prepare_folder(config_for(tmp_path / "run"), RunOptions(resume="nowhere"))
    assert not (tmp_path / "run").exists()


def test_roles(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    launch.check_role(config, None)
    with pytest.raises(InputError, match="--role trainer: stage pretrain expects no --role"):
        launch.check_role(config, "trainer")
