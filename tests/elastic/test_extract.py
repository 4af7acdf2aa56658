"""An extracted model computes what the supernet computes under the same Subnet, to the last bit."""

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.elastic.extract import EXPERT_ARRAYS, extract_arrays, extract_model
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import uniform_plan
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.utils.errors import InputError
from tests.elastic.conftest import make_model, make_rows

LAYERS, EXPERTS, TOP_K, DENSE = 5, 8, 3, 2


@st.composite
def extractable(draw: st.DrawFn) -> Subnet:
    """Any layers, equally many experts and one top-k in all of them, a pool per layer."""
    layers = sorted(draw(st.sets(st.integers(0, LAYERS - 1), min_size=1)))
    top_k = draw(st.integers(1, TOP_K))
    size = draw(st.integers(top_k, EXPERTS))
    pool = st.sets(st.integers(0, EXPERTS - 1), min_size=size, max_size=size)
    experts = tuple(() if layer < DENSE else tuple(sorted(draw(pool))) for layer in layers)
    return Subnet(tuple(layers), experts, tuple(top_k if pool else 0 for pool in experts))


@settings(max_examples=40, deadline=None)
@given(extractable(), st.integers(0, 99), st.integers(1, 4))
def test_logits_are_equal_bit_for_bit(model, subnet, seed, rows):
    batch = make_rows(seed, rows)
    plan = uniform_plan(subnet, rows, model.config)
    with paddle.no_grad():
        wanted = model.logits(batch.input_ids, batch.doc_ids, batch.position_ids, plan=plan)
        small = extract_model(model, subnet)
        found = small.logits(batch.input_ids, batch.doc_ids, batch.position_ids)
    assert np.array_equal(found.numpy().view(np.uint32), wanted.numpy().view(np.uint32))


@settings(max_examples=10, deadline=None)
@given(extractable(), st.integers(0, 99))
def test_training_losses_and_gradients_are_equal_bit_for_bit(subnet, seed):
    model = make_model()
    small = extract_model(model, subnet)
    batch = make_rows(seed)
    options = {
        "denominator": 61.0,
        "mtp_weight": 0.3,
        "mtp_denominator": 53.0,
        "balance_weight": 0.1,
    }
    plan = uniform_plan(subnet, len(batch.input_ids), model.config)
    wanted = model.loss(*batch.arrays(), plan=plan, **options)
    found = small.loss(*batch.arrays(), **options)
    assert np.array_equal(found.token_loss, wanted.token_loss)
    assert found.mtp_loss_sum == wanted.mtp_loss_sum > 0
    assert found.balance_loss == wanted.balance_loss
    assert float(found.total) == float(wanted.total)
    wanted.total.backward()
    found.total.backward()
    gradients = extract_arrays(_gradients(model), model.config, subnet)
    for name, gradient in _gradients(small).items():
        assert np.array_equal(gradient, gradients[name]), name


@given(extractable())
@settings(max_examples=20, deadline=None)
def test_arrays_are_the_kept_ones_renumbered(model, subnet):
    parent = model_arrays(model)
    arrays = extract_arrays(parent, model.config, subnet)
    for new, (layer, pool) in enumerate(zip(subnet.layers, subnet.experts, strict=True)):
        prefix = f"layers.{new}."
        parts = [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]
        assert len(parts) == sum(name.startswith(f"layers.{layer}.") for name in parent)
        for part in parts:
            old = parent[f"layers.{layer}.{part}"]
            if part not in EXPERT_ARRAYS:
                assert np.array_equal(arrays[prefix + part], old)
                continue
            for new_expert, expert in enumerate(pool):
                assert np.array_equal(arrays[prefix + part][new_expert], old[expert])
    outside = {name for name in parent if not name.startswith("layers.")}
    assert {name for name in arrays if not name.startswith("layers.")} == outside


def test_every_array_that_has_an_expert_axis_is_known(model):
    """A new per-expert parameter of the MoE layer must be added to EXPERT_ARRAYS."""
    grown = model_arrays(make_model(moe_num_experts=9))
    moved = {
        name.split(".", 2)[2]
        for name, array in model_arrays(model).items()
        if grown[name].shape != array.shape
    }
    assert moved == EXPERT_ARRAYS


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"moe_num_shared_experts": 0},
        {"moe_layer_start_index": 0, "num_nextn_predict_layers": 0},
        {"moe_num_experts": 0},
    ],
)
def test_other_architectures_are_equal_too(changes):
    model = make_model(**changes)
    spec = (
        SubnetSpec(layers=3)
        if "moe_num_experts" in changes
        else SubnetSpec(layers=3, experts=4, top_k=2)
    )
    subnet = Subnet.from_spec(spec, model.config)
    batch = make_rows(1)
    plan = uniform_plan(subnet, len(batch.input_ids), model.config)
    with paddle.no_grad():
        wanted = model.logits(batch.input_ids, batch.doc_ids, batch.position_ids, plan=plan)
        small = extract_model(model, subnet)
        found = small.logits(batch.input_ids, batch.doc_ids, batch.position_ids)
    assert np.array_equal(found.numpy(), wanted.numpy())


def test_the_parent_is_left_alone_and_shares_no_memory(model):
    before = {name: array.copy() for name, array in model_arrays(model).items()}
    small = extract_model(model, Subnet.from_spec(SubnetSpec(layers=3), model.config))
    for array in model_arrays(small).values():
        array[...] = 7
    assert all(np.array_equal(model_arrays(model)[name], array) for name, array in before.items())


def test_a_different_subnet_gives_different_logits(model):
    """The comparisons above could not fail if plans were ignored."""
    batch = make_rows(2)
    full = model.logits(batch.input_ids, batch.doc_ids, batch.position_ids).numpy()
    for spec in (SubnetSpec(layers=4), SubnetSpec(experts=7), SubnetSpec(top_k=2)):
        small = extract_model(model, Subnet.from_spec(spec, model.config))
        found = small.logits(batch.input_ids, batch.doc_ids, batch.position_ids).numpy()
        assert np.abs(found - full).max() > 1e-2


def test_what_cannot_be_cut_out_is_refused(model):
    uneven = Subnet((2, 3), ((0, 1, 2), (0, 1)), (2, 2))
    with pytest.raises(InputError, match="same number of experts"):
        extract_model(model, uneven)
    with pytest.raises(InputError, match="no layer 9"):
        extract_model(model, Subnet((9,), ((),), (0,)))


def test_parameters_are_those_counted(model):
    from paddle_ernie.models.cost import parameter_counts

    subnet = Subnet.from_spec(SubnetSpec(layers=4, experts=5, top_k=2), model.config)
    small = extract_model(model, subnet)
    arrays = model_arrays(small)
    counted = sum(array.size for name, array in arrays.items() if "correction_bias" not in name)
    assert counted == parameter_counts(standalone_config(model.config, subnet)).total


def _gradients(model):
    return {
        name: (np.zeros(tensor.shape, np.float32) if tensor.grad is None else tensor.grad.numpy())
        for name, tensor in model.named_parameters()
    }
