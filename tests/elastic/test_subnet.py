"""Subnets: construction from sizes, validation, identity, and the command-line form."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.elastic.subnet import Subnet, parse_spec, parse_subnet
from paddle_ernie.utils.errors import InputError
from tests.elastic.strategies import configs_with_specs, random_importance

CONFIG = ModelConfig(num_hidden_layers=6, moe_num_experts=8, moe_k=3, moe_layer_start_index=1)


@given(configs_with_specs(), st.none() | st.integers(0, 9))
def test_from_spec_has_the_sizes_asked_for_and_fits(drawn, seed):
    config, spec = drawn
    ranking = None if seed is None else random_importance(config, seed)
    subnet = Subnet.from_spec(spec, config, ranking)
    subnet.validate(config)
    sizes = subnet.sizes()
    wanted = spec.layers if spec.layers is not None else config.num_hidden_layers
    assert sizes.layers == (len(wanted) if isinstance(wanted, list) else wanted)
    for layer, experts, top_k in zip(subnet.layers, sizes.experts, sizes.top_k, strict=True):
        is_moe = config.is_moe_layer(layer)
        assert experts == ((spec.experts or config.moe_num_experts) if is_moe else 0)
        assert top_k == ((spec.top_k or config.moe_k) if is_moe else 0)


@given(configs_with_specs())
def test_json_round_trip_keeps_value_and_id(drawn):
    config, spec = drawn
    subnet = Subnet.from_spec(spec, config)
    again = Subnet.from_json(json.loads(json.dumps(subnet.to_json())))
    assert again == subnet
    assert again.id == subnet.id
    assert hash(again) == hash(subnet)


@given(configs_with_specs(), configs_with_specs())
def test_ids_differ_exactly_when_subnets_do(first, second):
    one, other = (Subnet.from_spec(spec, config) for config, spec in (first, second))
    assert (one.id == other.id) == (one == other)


def test_id_is_the_same_in_another_process():
    subnet = Subnet((0, 2), ((), (1, 3)), (0, 1))
    code = (
        "from paddle_ernie.elastic.subnet import Subnet;"
        "print(Subnet((0, 2), ((), (1, 3)), (0, 1)).id)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == subnet.id
    assert len(subnet.id) == 16


def test_full_keeps_everything():
    full = Subnet.full(CONFIG)
    assert full.layers == (0, 1, 2, 3, 4, 5)
    assert full.experts == ((), *[tuple(range(8))] * 5)
    assert full.top_k == (0, 3, 3, 3, 3, 3)
    assert full.is_full(CONFIG)
    assert not Subnet.from_spec(SubnetSpec(top_k=2), CONFIG).is_full(CONFIG)


@pytest.mark.parametrize(
    ("count", "layers"),
    [(1, (0,)), (2, (0, 5)), (3, (0, 3, 5)), (4, (0, 2, 3, 5)), (6, (0, 1, 2, 3, 4, 5))],
)
def test_counted_layers_are_spread_with_first_and_last(count, layers):
    assert Subnet.from_spec(SubnetSpec(layers=count), CONFIG).layers == layers


@given(st.integers(2, 200), st.data())
def test_spread_layers_are_distinct_and_even(available, data):
    count = data.draw(st.integers(2, available))
    config = ModelConfig(num_hidden_layers=available)
    layers = Subnet.from_spec(SubnetSpec(layers=count), config).layers
    gaps = np.diff(layers)
    assert (layers[0], layers[-1], len(layers)) == (0, available - 1, count)
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


def test_ranking_picks_the_best_and_the_lower_index_wins_ties():
    ranking = Importance(
        "reap",
        (0.5, 0.1, 0.9, 0.1, 0.7, 0.1),
        (None, *[np.array([0.0, 9.0, 1.0, 1.0, 1.0, 5.0, 0.0, 0.0])] * 5),
    )
    subnet = Subnet.from_spec(SubnetSpec(layers=4, experts=3, top_k=1), CONFIG, ranking)
    assert subnet.layers == (0, 1, 2, 4)
    assert subnet.experts == ((), (1, 2, 5), (1, 2, 5), (1, 2, 5))
    assert json.loads(json.dumps(ranking.to_json()))["expert_scores"][0] is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SubnetSpec(layers=7), r"layers: 7, but the model has 6; expected 1\.\.6"),
        (SubnetSpec(layers=0), r"layers: 0, .* expected 1\.\.6"),
        (SubnetSpec(layers=[]), "list is empty"),
        (SubnetSpec(layers=[1, 9]), r"no layer \[9\].*0\.\.5"),
        (SubnetSpec(layers=[1, 1]), "lists a layer twice"),
        (SubnetSpec(experts=9), r"experts: 9, .* expected 1\.\.8"),
        (SubnetSpec(top_k=4), r"top_k: 4, .* expected 1\.\.3"),
        (SubnetSpec(experts=2), r"less than top_k 3 \(the default\)"),
        (SubnetSpec(experts=1, top_k=2), r"experts: 1 is less than top_k 2;"),
    ],
)
def test_impossible_sizes_say_what_and_what_was_expected(spec, message):
    with pytest.raises(InputError, match=message):
        Subnet.from_spec(spec, CONFIG)


def test_all_faults_of_a_spec_are_reported_together():
    with pytest.raises(InputError) as error:
        Subnet.from_spec(SubnetSpec(layers=7, experts=9, top_k=4), CONFIG)
    assert all(key in str(error.value) for key in ("layers: 7", "experts: 9", "top_k: 4"))


def test_a_dense_model_has_no_experts_to_choose():
    dense = ModelConfig(moe_num_experts=0)
    with pytest.raises(InputError, match="no experts"):
        Subnet.from_spec(SubnetSpec(experts=2), dense)
    assert Subnet.from_spec(SubnetSpec(layers=2), dense).top_k == (0, 0)


FULL_POOL = tuple(range(8))


@pytest.mark.parametrize(
    ("subnet", "message"),
    [
        (Subnet((), (), ()), "layers: empty"),
        (Subnet((0, 1), ((),), (0, 1)), "2, 1 and 2 entries"),
        (Subnet((1, 0), (FULL_POOL, ()), (1, 0)), "ascending indices"),
        (Subnet((6,), (FULL_POOL,), (1,)), "no layer 6"),
        (Subnet((0,), (FULL_POOL,), (1,)), "layer 0 is dense"),
        (Subnet((1,), ((0, 8),), (1,)), r"layer 1: experts \[0, 8\]"),
        (Subnet((1,), ((2, 1),), (1,)), "ascending ids"),
        (Subnet((1,), ((1, 1),), (1,)), "without repeats"),
        (Subnet((1,), ((1, 2),), (3,)), r"top_k 3; expected 1\.\.2"),
        (Subnet((1,), (FULL_POOL,), (0,)), "top_k 0"),
        (Subnet((1,), (FULL_POOL,), (4,)), r"expected 1\.\.3"),
    ],
)
def test_validate_names_the_fault(subnet, message):
    with pytest.raises(InputError, match=message):
        subnet.validate(CONFIG)


@pytest.mark.parametrize("value", [{}, {"layers": [0]}, {"layers": 3, "experts": [], "top_k": []}])
def test_malformed_json_is_an_input_error(value):
    with pytest.raises(InputError, match="cannot be read"):
        Subnet.from_json(value)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("full", SubnetSpec()),
        ("layers=4,experts=8,top_k=1", SubnetSpec(layers=4, experts=8, top_k=1)),
        (" layers = 0 + 2 + 5 , top_k=2 ", SubnetSpec(layers=[0, 2, 5], top_k=2)),
        ("experts=3", SubnetSpec(experts=3)),
    ],
)
def test_command_line_form(text, spec):
    assert parse_spec(text) == spec
    assert parse_subnet(text, CONFIG) == Subnet.from_spec(spec, CONFIG)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "layers",
        "layer=4",
        "layers=4,layers=5",
        "layers=x",
        "top_k=-1",
        "experts=1+2",
        "top_k=0",
    ],
)
def test_command_line_form_rejects_what_it_cannot_read(text):
    with pytest.raises(InputError, match="subnet"):
        parse_spec(text)


@given(st.text(max_size=30))
def test_any_command_line_text_parses_or_is_an_input_error(text):
    try:
        spec = parse_spec(text)
    except InputError:
        return
    assert isinstance(spec, SubnetSpec)


def test_spec_schema_refuses_what_the_parser_refuses():
    with pytest.raises(ValidationError):
        SubnetSpec(experts=0)
