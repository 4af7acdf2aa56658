"""Search over sizes, against counting every size by itself."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.search import MAX_DISTANCE, TIE, enumerate_sizes, search_spec
from paddle_ernie.elastic.standalone import compare_sizes, standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.utils.errors import InputError
from tests.elastic.strategies import random_importance

MODEL = ModelConfig(
    vocab_size=500,
    hidden_size=64,
    num_hidden_layers=6,
    moe_num_experts=16,
    moe_k=4,
    moe_intermediate_size=32,
    moe_layer_start_index=2,
    intermediate_size=200,
    num_nextn_predict_layers=1,
)


def ratios(config, spec, ranking=None):
    sizes = compare_sizes(
        config, standalone_config(config, Subnet.from_spec(spec, config, ranking))
    )
    return sizes.total_ratio, sizes.active_ratio


def by_brute_force(config, total, active, ranking):
    """(distance, layers) of every legal size."""
    found = []
    for layers in range(1, config.num_hidden_layers + 1):
        for top_k in range(1, config.moe_k + 1):
            for experts in range(top_k, config.moe_num_experts + 1):
                spec = SubnetSpec(layers=layers, experts=experts, top_k=top_k)
                t, a = ratios(config, spec, ranking)
                found.append((float(np.hypot(t / total - 1, a / active - 1)), layers))
    return found


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 1), st.floats(0.2, 1), st.none() | st.integers(0, 5))
def test_result_is_the_best_of_all_sizes(total, active, seed):
    ranking = None if seed is None else random_importance(MODEL, seed)
    every = by_brute_force(MODEL, total, active, ranking)
    closest = min(distance for distance, _ in every)
    if closest > MAX_DISTANCE:
        with pytest.raises(InputError):
            search_spec(MODEL, total, active, ranking)
        return
    result = search_spec(MODEL, total, active, ranking)
    assert ratios(MODEL, result.spec, ranking) == pytest.approx(
        (result.total_ratio, result.active_ratio), abs=1e-12
    )
    most_layers = max(layers for distance, layers in every if distance <= closest + TIE)
    assert result.spec.layers == most_layers
    best = min(distance for distance, layers in every if layers == most_layers)
    assert result.distance == pytest.approx(best, abs=1e-12)


def test_ratio_one_is_the_full_model():
    result = search_spec(MODEL, 1.0, 1.0)
    assert result.spec == SubnetSpec(layers=6, experts=16, top_k=4)
    assert (result.total_ratio, result.active_ratio, result.distance) == (1.0, 1.0, 0.0)


def test_ernies_ratios_are_met_by_a_model_of_useful_size():
    config = ModelConfig(
        vocab_size=1000, num_hidden_layers=24, moe_num_experts=64, moe_k=8, hidden_size=128
    )
    result = search_spec(config, 0.358, 0.537)
    assert result.total_ratio == pytest.approx(0.358, rel=0.03)
    assert result.active_ratio == pytest.approx(0.537, rel=0.03)


def test_an_impossible_pair_lists_the_nearest():
    with pytest.raises(InputError) as error:
        search_spec(MODEL, 0.9, 0.1)
    message = str(error.value)
    assert "total_ratio 0.9 and active_ratio 0.1" in message
    assert message.count("layers=") == 3
    nearest = min(enumerate_sizes(MODEL, 0.9, 0.1), key=lambda result: result.distance)
    assert str(nearest) in message


def test_a_dense_model_is_cut_in_depth():
    dense = ModelConfig(vocab_size=500, moe_num_experts=0, num_hidden_layers=8)
    result = search_spec(dense, 0.5, 0.5)
    assert result.spec == SubnetSpec(layers=4)


def test_a_large_model_is_searched_within_a_second():
    config = ModelConfig(
        vocab_size=100_000, num_hidden_layers=64, moe_num_experts=512, moe_k=8, hidden_size=4096
    )
    before = time.process_time()
    search_spec(config, 0.36, 0.54)
    assert time.process_time() - before < 1
