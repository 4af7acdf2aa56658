"""The architecture of a Subnet as its own model, and the ratios of its size."""

import json

import pytest
from hypothesis import given

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.standalone import compare_sizes, standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import parameter_counts
from paddle_ernie.utils.errors import InputError
from tests.elastic.strategies import configs_with_specs

MODEL = ModelConfig(
    vocab_size=300, num_hidden_layers=6, moe_num_experts=8, moe_k=4, moe_layer_start_index=2
)


@given(configs_with_specs())
def test_it_counts_as_the_subnets_sizes_do(drawn):
    config, spec = drawn
    config = config.model_copy(update={"vocab_size": 100})
    subnet = Subnet.from_spec(spec, config)
    smaller = standalone_config(config, subnet)
    assert parameter_counts(smaller) == parameter_counts(config, subnet.sizes())


def test_dropped_dense_layers_move_the_first_moe_layer():
    smaller = standalone_config(MODEL, Subnet.from_spec(SubnetSpec(layers=[1, 3, 5]), MODEL))
    assert (smaller.num_hidden_layers, smaller.moe_layer_start_index) == (3, 1)
    assert [smaller.is_moe_layer(layer) for layer in range(3)] == [False, True, True]


def test_only_dense_layers_make_a_dense_model():
    smaller = standalone_config(MODEL, Subnet.from_spec(SubnetSpec(layers=[0, 1]), MODEL))
    assert (smaller.num_hidden_layers, smaller.moe_num_experts) == (2, 0)
    assert smaller.moe_layers == ()


def test_everything_else_is_the_parents():
    smaller = standalone_config(MODEL, Subnet.from_spec(SubnetSpec(layers=4, top_k=1), MODEL))
    changed = {"num_hidden_layers", "moe_k", "moe_layer_start_index", "moe_num_experts"}
    assert smaller.model_dump(exclude=changed) == MODEL.model_dump(exclude=changed)
    assert standalone_config(MODEL, Subnet.full(MODEL)) == MODEL


@pytest.mark.parametrize(
    "subnet",
    [
        Subnet((2, 3), ((0, 1, 2), (0, 1)), (1, 1)),
        Subnet((2, 3), ((0, 1), (0, 1)), (1, 2)),
    ],
)
def test_layers_that_differ_cannot_become_one_model(subnet):
    with pytest.raises(InputError, match=r"layer 3: 2 experts, top-.*same number of experts"):
        standalone_config(MODEL, subnet)


def test_ratios_leave_embeddings_out():
    smaller = standalone_config(MODEL, Subnet.from_spec(SubnetSpec(experts=4, top_k=1), MODEL))
    sizes = compare_sizes(MODEL, smaller)
    D, F = MODEL.hidden_size, MODEL.moe_intermediate_size
    one_expert = 3 * D * F
    kept = sizes.before.total_without_embedding - 4 * 4 * (one_expert + D)
    assert sizes.total_ratio == kept / sizes.before.total_without_embedding
    assert sizes.total_ratio < sizes.total_ratio_with_embedding < 1
    assert sizes.active_ratio < sizes.active_ratio_with_embedding < 1
    written = json.loads(json.dumps(sizes.to_json()))
    assert written["params_after"]["total"] == sizes.after.total
    assert written["params_before"]["active_without_embedding"] < sizes.before.active
    assert written["ratios"]["total"] == sizes.total_ratio
