"""Checks between sections agree with the code that would fail later, and point at the right key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paddle_ernie.config.checks import cross_faults
from paddle_ernie.config.elastic import ElasticConfig, SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.stages import PipelineConfig, PretrainConfig
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.utils.errors import InputError

MODELS = st.builds(
    dict,
    num_hidden_layers=st.integers(1, 5),
    moe_num_experts=st.sampled_from([0, 2, 4, 8]),
    moe_k=st.integers(1, 2),
    moe_layer_start_index=st.integers(0, 3),
).map(lambda values: ModelConfig(**values))
PROBABILITY = st.sampled_from([0.0, 0.25, 1.0])
ELASTIC = st.fixed_dictionaries(
    {
        "depth": st.builds(dict, probability=PROBABILITY, min_layers=st.integers(1, 5)),
        "width": st.builds(
            dict,
            probability=PROBABILITY,
            fractions=st.lists(st.sampled_from([-0.5, 0.0, 0.1, 0.5, 0.9, 1.0, 2.0]), min_size=1),
        ),
        "sparsity": st.builds(dict, probability=PROBABILITY, min_k=st.integers(1, 3)),
    }
).map(lambda values: ElasticConfig(**values))
SPECS = st.builds(
    SubnetSpec,
    layers=st.none() | st.integers(0, 6) | st.lists(st.integers(-1, 6), max_size=4),
    experts=st.none() | st.integers(1, 9),
    top_k=st.none() | st.integers(1, 3),
)


def pretrain(model: ModelConfig, **sections: Any) -> PretrainConfig:
    return PretrainConfig(
        stage="pretrain",
        run={"output_dir": "out"},
        model=model,
        data={"sources": [{"format": "python_stdlib"}], **sections.pop("data", {})},
        train={"max_steps": 1},
        **sections,
    )


def paths(config: Any) -> list[str]:
    return [".".join(map(str, fault.path)) for fault in cross_faults(config)]


@given(MODELS, ELASTIC)
def test_elastic_axes_are_refused_exactly_when_the_space_refuses_them(
    model: ModelConfig, elastic: ElasticConfig
) -> None:
    try:
        ElasticSpace(elastic, model)
        fits = True
    except InputError:
        fits = False
    assert (not cross_faults(pretrain(model, elastic=elastic))) == fits


@given(MODELS, SPECS)
def test_subnets_are_refused_exactly_when_they_cannot_be_made(
    model: ModelConfig, spec: SubnetSpec
) -> None:
    try:
        Subnet.from_spec(spec, model).validate(model)
        fits = True
    except InputError:
        fits = False
    # A model whose layers are all dense is caught here; the maker takes unused experts for sizes.
    if fits and not model.moe_layers and (spec.experts or spec.top_k):
        fits = False
    assert (not cross_faults(pretrain(model, eval={"subnets": {"a": spec}}))) == fits


def test_where_the_faults_of_a_training_stage_are() -> None:
    model = ModelConfig(vocab_size=512, max_position_embeddings=128)
    config = pretrain(
        model,
        elastic={
            "depth": {"min_layers": 6},
            "width": {"fractions": [0.5, 1.0]},
            "sparsity": {"min_k": 2},
        },
        eval={
            "subnets": {
                "a": {"layers": 7, "experts": 17, "top_k": 3},
                "b": {"layers": [0, 0, 6], "experts": 1},
                "c": {"layers": []},
            }
        },
    )
    assert paths(config) == [
        "model.vocab_size",
        "data.max_seq_len",
        "elastic.depth.min_layers",
        "elastic.width.fractions.1",
        "elastic.sparsity.min_k",
        "eval.subnets.a.layers",
        "eval.subnets.a.top_k",
        "eval.subnets.a.experts",
        "eval.subnets.b.layers.1",
        "eval.subnets.b.layers.2",
        "eval.subnets.b.experts",
        "eval.subnets.c.layers",
    ]


def test_a_given_tokenizer_settles_the_vocabulary_later() -> None:
    model = ModelConfig(vocab_size=512)
    assert paths(pretrain(model)) == ["model.vocab_size"]
    assert paths(pretrain(model, data={"tokenizer": {"path": "tokenizer.json"}})) == []
    assert paths(pretrain(ModelConfig(vocab_size=10_000))) == []


def test_a_dense_model_has_no_width_or_sparsity() -> None:
    config = pretrain(ModelConfig(moe_num_experts=0), elastic={})
    assert paths(config) == ["elastic.width.probability", "elastic.sparsity.probability"]


def pipeline(*stages: dict[str, Any]) -> PipelineConfig:
    return PipelineConfig(
        stage="pipeline",
        run={"output_dir": "out"},
        data={"sources": [{"format": "python_stdlib"}]},
        stages=list(stages),
    )


FIRST = {"kind": "pretrain", "name": "a", "model": {}, "train": {"max_steps": 1}}


def test_later_stages_of_a_pipeline_are_checked_against_the_model_they_start_from() -> None:
    config = pipeline(
        FIRST,
        {
            **FIRST,
            "name": "b",
            "model": None,
            "init_from": "a",
            "elastic": {"depth": {"min_layers": 9}},
        },
        {"kind": "extract", "name": "c", "init_from": "b", "extract": {"subnet": {"layers": 9}}},
        {
            **FIRST,
            "name": "d",
            "model": None,
            "init_from": "c",
            "elastic": {"depth": {"min_layers": 9}},
        },
    )
    assert paths(config) == ["stages.1.elastic.depth.min_layers", "stages.2.extract.subnet.layers"]


@pytest.mark.parametrize("name", ["cache", "visualdl", "a/b", "", "0", "..", "-x"])
def test_names_of_stages_are_folder_names(name: str) -> None:
    with pytest.raises(ValidationError):
        pipeline({**FIRST, "name": name})


def test_a_report_compares_models_on_the_same_rows() -> None:
    first = {**FIRST, "eval": {"final_eval_rows": 64}}
    cut = {"kind": "extract", "name": "c", "init_from": "a", "extract": {"subnet": {"layers": 2}}}
    healed = {**FIRST, "name": "d", "model": None, "init_from": "c"}
    report = {"kind": "report", "name": "r"}
    assert paths(pipeline(first, cut, healed)) == []
    assert paths(pipeline(first, cut, healed, report)) == [
        "stages.1.extract.eval_rows",
        "stages.2.eval.final_eval_rows",
    ]
    same = {"subnet": {"layers": 2}, "eval_rows": 64}
    assert paths(pipeline(first, {**cut, "extract": same}, report)) == []
    assert paths(pipeline(FIRST, cut, healed, report)) == [], "the defaults are equal"
