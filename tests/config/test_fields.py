"""Which keys a schema knows at a path."""

import pytest

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.fields import keys_at, sections_with
from paddle_ernie.config.stages import ExtractStep, PipelineConfig, PretrainConfig
from paddle_ernie.config.train import TrainConfig


def test_keys_of_a_section_behind_an_optional() -> None:
    assert keys_at(PretrainConfig, ("elastic",), None) == ["depth", "width", "sparsity"]
    assert keys_at(PretrainConfig, ("train",), None) == list(TrainConfig.model_fields)


def test_keys_of_entries_of_lists_and_mappings() -> None:
    assert "glob" in keys_at(PretrainConfig, ("data", "sources", 3), None)
    assert keys_at(PretrainConfig, ("eval", "subnets", "x"), None) == list(SubnetSpec.model_fields)


@pytest.mark.parametrize("kind", ["extract", None])
def test_the_kind_of_a_step_decides(kind: str | None) -> None:
    value = {"stages": [{"kind": kind}]}
    keys = keys_at(PipelineConfig, ("stages", 0), value)
    assert ("train" in keys) == (kind is None)
    assert set(ExtractStep.model_fields) <= set(keys)


def test_nothing_is_known_below_plain_values() -> None:
    assert keys_at(PretrainConfig, ("train", "max_steps", "x"), None) == []
    assert keys_at(PretrainConfig, ("nonsense",), None) == []


def test_sections_that_know_a_key() -> None:
    assert sections_with(PretrainConfig, "learning_rate") == ["train"]
    assert sections_with(PretrainConfig, "sample_prompts") == ["monitor"]
    assert sections_with(PretrainConfig, "nonsense") == []
