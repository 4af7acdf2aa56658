"""Fingerprints decide what a pipeline runs again: what changed, and all stages after it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.stages import PipelineConfig
from paddle_ernie.models.model_dir import WEIGHTS_FILE, save_model_dir
from paddle_ernie.post.pipeline import (
    StageFolder,
    extract_config,
    pretrain_config,
    run_pipeline,
    stage_folders,
)
from paddle_ernie.train.run_folder import RunFolder
from paddle_ernie.utils.errors import CheckpointError, InputError, Interrupted
from paddle_ernie.utils.options import RunOptions, StopFlag


def make(output_dir: Path, **changes: Any) -> PipelineConfig:
    """A chain of every kind of stage; `changes` maps "stage.section.key" to a value."""
    stages: list[dict[str, Any]] = [
        {"kind": "tokenizer", "name": "text"},
        {"kind": "pretrain", "name": "big", "model": {}, "train": {"max_steps": 2}, "eval": {}},
        {
            "kind": "extract",
            "name": "cut",
            "init_from": "big",
            "extract": {"subnet": {"layers": 4}},
        },
        {
            "kind": "pretrain",
            "name": "heal",
            "init_from": "cut",
            "train": {"max_steps": 2},
            "checkpoint": {},
        },
        {"kind": "samples", "name": "samples", "models": ["big", "heal"], "prompts": ["a"]},
        {"kind": "report", "name": "report"},
    ]
    for path, value in changes.items():
        name, section, key = path.split("__")
        next(stage for stage in stages if stage["name"] == name)[section][key] = value
    return PipelineConfig.model_validate(
        {
            "stage": "pipeline",
            "run": {"output_dir": output_dir},
            "data": {"sources": [{"format": "python_stdlib"}]},
            "stages": stages,
        }
    )


def finish(folder: StageFolder, weight: float = 0.0) -> None:
    """Leave what a finished stage leaves; its model has one weight."""
    output_dir = folder.path.parent
    files = [folder.path / "summary.json", folder.path / "samples.json"]
    for file in [*files, output_dir / "report.md", output_dir / "report.json"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    if folder.model is not None:
        weights = {"weight": np.full(3, weight, np.float32)}
        save_model_dir(folder.model, weights, ModelConfig(vocab_size=9), None)
    folder.record(done=True, seconds=1.5)


def finish_all(config: PipelineConfig) -> dict[str, StageFolder]:
    folders = stage_folders(config)
    for folder in folders.values():
        finish(folder)
    return folders


def undone(config: PipelineConfig) -> set[str]:
    return {name for name, folder in stage_folders(config).items() if not folder.is_done}


def changed(before: PipelineConfig, after: PipelineConfig) -> set[str]:
    """Names of the stages whose fingerprints differ."""
    old, new = stage_folders(before), stage_folders(after)
    return {name for name in old if old[name].fingerprint != new[name].fingerprint}


@pytest.mark.parametrize(
    ("change", "value", "expected"),
    [
        ("big__train__max_steps", 3, {"big", "cut", "heal", "samples", "report"}),
        ("cut__extract__subnet", {"layers": 5}, {"cut", "heal", "samples", "report"}),
        ("heal__train__learning_rate", 1e-4, {"heal", "samples", "report"}),
        ("heal__checkpoint__save_steps", 7, set()),
    ],
)
def test_a_change_reaches_exactly_its_descendants(
    tmp_path: Path, change: str, value: Any, expected: set[str]
) -> None:
    assert changed(make(tmp_path), make(tmp_path, **{change: value})) == expected


def test_place_of_the_run_does_not_matter(tmp_path: Path) -> None:
    assert changed(make(tmp_path / "a"), make(tmp_path / "b")) == set()


def test_seed_and_data_reach_every_stage(tmp_path: Path) -> None:
    config = make(tmp_path)
    reseeded = config.model_copy(update={"run": config.run.model_copy(update={"seed": 9})})
    assert changed(config, reseeded) == set(stage_folders(config))


def test_stages_share_the_cache_and_chain_their_models(tmp_path: Path) -> None:
    config = make(tmp_path)
    folders = stage_folders(config)
    heal = pretrain_config(config, folders["heal"].step, folders)
    cut = extract_config(config, folders["cut"].step, folders)
    assert cut.init_from == tmp_path / "big" / "model"
    assert heal.init_from == tmp_path / "cut" / "model"
    assert heal.data.cache_dir == cut.data.cache_dir == tmp_path / "cache"
    assert heal.run.visualdl_dir == tmp_path / "visualdl" / "heal"


def test_a_stage_is_done_only_with_the_same_fingerprint(tmp_path: Path) -> None:
    config = make(tmp_path)
    folder = stage_folders(config)["cut"]
    assert not folder.is_done
    folder.record(done=False)
    assert not folder.is_done
    finish(folder)
    assert folder.is_done
    other = stage_folders(make(tmp_path, cut__extract__subnet={"layers": 3}))["cut"]
    assert not other.is_done


def test_a_resume_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--resume somewhere.*auto or --resume never"):
        run_pipeline(make(tmp_path), RunOptions(resume="somewhere"))


def test_done_stages_are_skipped_and_a_stop_is_honoured(tmp_path: Path) -> None:
    config = make(tmp_path)
    folders = list(stage_folders(config).values())
    for folder in folders[:-1]:
        finish(folder)
    stop, console = StopFlag(), Console(record=True, width=100)
    stop.set("test")
    with pytest.raises(Interrupted, match="before stage 6/6: report"):
        run_pipeline(config, RunOptions(stop=stop, console=console))
    assert console.export_text().count("is done, skipped") == 5


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ("text/summary.json", {"text"}),
        ("big/summary.json", {"big"}),
        ("samples/samples.json", {"samples"}),
        ("report.md", {"report"}),
        ("report.json", {"report"}),
        ("cut/stage.json", {"cut"}),
    ],
)
def test_a_stage_whose_result_is_gone_is_not_done(
    tmp_path: Path, lost: str, expected: set[str]
) -> None:
    config = make(tmp_path)
    finish_all(config)
    assert undone(config) == set()
    (tmp_path / lost).unlink()
    assert undone(config) == expected


def test_a_damaged_model_is_noticed(tmp_path: Path) -> None:
    config = make(tmp_path)
    finish_all(config)
    with (tmp_path / "big" / "model" / WEIGHTS_FILE).open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"!")
    assert undone(config) == {"big"}


def test_another_model_reaches_the_stages_that_start_from_it(tmp_path: Path) -> None:
    config = make(tmp_path)
    folders = finish_all(config)
    weights = {"weight": np.ones(3, np.float32)}
    save_model_dir(folders["big"].model, weights, ModelConfig(vocab_size=9), None)  # by hand
    assert undone(config) == {"big", "cut", "samples", "report"}
    finish(folders["big"])  # made again, the same bytes
    assert undone(config) == set()
    finish(folders["big"], weight=2.0)  # made again on another machine, other bytes
    assert undone(config) == {"cut", "samples", "report"}


def test_what_another_configuration_left_is_not_gone_on_from(tmp_path: Path) -> None:
    """However soon the run is stopped after it was started with the changed configuration."""
    finish_all(make(tmp_path))
    folder = stage_folders(make(tmp_path, big__train__learning_rate=1e-4))["big"]
    run = RunFolder(folder.path)
    (run.checkpoints / "step-00000002").mkdir(parents=True)
    folder.prepare()
    assert not run.checkpoints.exists() and not run.model.exists() and not run.summary.exists()
    (run.checkpoints / "step-00000001").mkdir(parents=True)
    folder.prepare()  # the same again: a stage that was cut short
    assert (run.checkpoints / "step-00000001").exists()
    folder.forget()
    folder.prepare()  # nobody knows what made these checkpoints
    assert not run.checkpoints.exists()


def test_starting_over_forgets_every_stage_at_once(tmp_path: Path) -> None:
    config, stop = make(tmp_path), StopFlag()
    finish_all(config)
    stop.set("test")
    with pytest.raises(Interrupted, match="before stage 1/6"):
        run_pipeline(config, RunOptions(resume="never", stop=stop))
    assert undone(config) == set(stage_folders(config))
    assert (tmp_path / "big" / "model" / WEIGHTS_FILE).exists()  # until its stage runs


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    config = make(tmp_path)
    finish_all(config)
    (tmp_path / "cut" / "stage.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cut/stage\.json: not the record.*delete it"):
        run_pipeline(config, RunOptions())


def test_a_second_pipeline_in_the_folder_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path).lock(), pytest.raises(InputError, match="another process"):
        run_pipeline(make(tmp_path), RunOptions())


def test_a_report_reads_the_stages_before_it(tmp_path: Path) -> None:
    config = make(tmp_path)
    report = config.stages.pop()
    config.stages.insert(2, report)
    folders = stage_folders(config)
    assert [folder.step.name for folder in folders["report"].parents] == ["text", "big"]
