"""Fingerprints decide what a pipeline runs again: what changed, and all stages after it."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paddle_ernie.config.stages import PipelineConfig
from paddle_ernie.post.pipeline import (
    extract_config,
    pretrain_config,
    run_pipeline,
    stage_folders,
)
from paddle_ernie.utils.errors import InputError, Interrupted
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
    folder.record(done=True, seconds=1.5)
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
        folder.record(done=True)
    stop, console = StopFlag(), Console(record=True, width=100)
    stop.set("test")
    with pytest.raises(Interrupted, match="before stage 6/6: report"):
        run_pipeline(config, RunOptions(stop=stop, console=console))
    assert console.export_text().count("is done, skipped") == 5
