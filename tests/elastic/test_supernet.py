"""Plans: groups partition the active rows and hold equal pools and top-k only."""

import numpy as np
import pytest
from hypothesis import given

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import forward_plan, uniform_plan
from paddle_ernie.models.plan import full_plan
from tests.elastic.strategies import PLAN_MODEL as MODEL
from tests.elastic.strategies import batches


@given(batches)
def test_groups_partition_the_rows_that_keep_the_layer(subnets):
    plan = forward_plan(subnets, MODEL)
    assert plan.num_rows == len(subnets)
    assert len(plan.layers) == MODEL.num_hidden_layers
    for layer, layer_plan in enumerate(plan.layers):
        active = [row for row, subnet in enumerate(subnets) if layer in subnet.layers]
        members = [int(row) for group in layer_plan.groups for row in group.rows]
        assert sorted(members) == active
        assert len(set(members)) == len(members)
        np.testing.assert_array_equal(layer_plan.rows, active)


@given(batches)
def test_every_row_gets_its_own_pool_and_top_k(subnets):
    for layer, layer_plan in enumerate(forward_plan(subnets, MODEL).layers):
        for group in layer_plan.groups:
            assert list(group.rows) == sorted(group.rows)
            for row in group.rows:
                index = subnets[row].layers.index(layer)
                if not MODEL.is_moe_layer(layer):
                    assert group.experts is None
                    continue
                pool = range(4) if group.experts is None else group.experts
                assert tuple(pool) == subnets[row].experts[index]
                assert group.top_k == subnets[row].top_k[index]


@given(batches)
def test_no_two_groups_of_a_layer_could_be_one(subnets):
    for layer_plan in forward_plan(subnets, MODEL).layers:
        keys = [
            (None if group.experts is None else tuple(group.experts), group.top_k)
            for group in layer_plan.groups
        ]
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("model", [MODEL, ModelConfig(moe_num_experts=0)])
def test_full_subnets_compile_to_the_full_plan(model):
    plan = uniform_plan(Subnet.full(model), 3, model)
    wanted = full_plan(3, model.num_hidden_layers, model.moe_k)
    for layer, expected in zip(plan.layers, wanted.layers, strict=True):
        (group,), (expected_group,) = layer.groups, expected.groups
        np.testing.assert_array_equal(group.rows, expected_group.rows)
        assert group.rows.dtype == np.int64
        assert group.experts is None
        assert group.top_k == expected_group.top_k


def test_a_layer_that_no_row_keeps_has_no_groups():
    plan = uniform_plan(Subnet((1,), ((0, 2),), (1,)), 2, MODEL)
    assert [len(layer.groups) for layer in plan.layers] == [0, 1, 0, 0]
    assert plan.layers[0].rows.size == 0
    np.testing.assert_array_equal(plan.layers[1].groups[0].experts, [0, 2])
