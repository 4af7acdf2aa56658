"""Stages: where a model comes from, what is cut out, and which steps a pipeline may chain."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from paddle_ernie.config.stages import STAGES, ExtractChoice, PipelineConfig, StageConfig

DATA = {"sources": [{"format": "python_stdlib"}]}
MODEL_STEP = {"kind": "pretrain", "name": "a", "model": {}, "train": {"max_steps": 1}}


def pipeline(*stages: dict[str, Any]) -> PipelineConfig:
    return PipelineConfig(stage="pipeline", run={"output_dir": "o"}, data=DATA, stages=list(stages))


def test_every_stage_is_named_by_its_own_schema() -> None:
    assert set(STAGES.values()) == set(get_args(StageConfig))
    for name, schema in STAGES.items():
        assert get_args(schema.model_fields["stage"].annotation) == (name,)


@pytest.mark.parametrize("origin", [{}, {"model": {}, "init_from": "m"}])
def test_a_model_is_either_new_or_given(origin: dict[str, Any]) -> None:
    common = {"stage": "pretrain", "run": {"output_dir": "o"}, "data": DATA}
    with pytest.raises(ValidationError, match="either `model`"):
        STAGES["pretrain"](**common, train={"max_steps": 1}, **origin)
    step = {"kind": "pretrain", "name": "b", "train": {"max_steps": 1}, **origin}
    with pytest.raises(ValidationError, match="stage 'b' needs either `model`"):
        pipeline(MODEL_STEP, step)


@pytest.mark.parametrize(
    "values",
    [{}, {"total_ratio": 0.5}, {"subnet": {}, "total_ratio": 0.5, "active_ratio": 0.5}],
)
def test_an_extraction_has_sizes_or_both_ratios(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="either `subnet`, or both"):
        ExtractChoice(**values)


def test_chains() -> None:
    cut = {"kind": "extract", "name": "cut", "init_from": "a", "extract": {"subnet": {}}}
    samples = {"kind": "samples", "name": "s", "models": ["a", "cut"], "prompts": ["x"]}
    names = [
        s.name for s in pipeline(MODEL_STEP, cut, samples, {"kind": "report", "name": "r"}).stages
    ]
    assert names == ["a", "cut", "s", "r"]
    with pytest.raises(ValidationError, match="'cut', which is not an earlier stage"):
        pipeline(MODEL_STEP, samples, cut)
    with pytest.raises(ValidationError, match=r"'s', which makes no model .*: a, cut"):
        pipeline(MODEL_STEP, cut, samples, {**cut, "name": "x", "init_from": "s"})
