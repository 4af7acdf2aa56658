"""The balancing bias moves by a fixed step against the load, and evens out a skewed router."""

import numpy as np
import paddle
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.train.balance import balanced_bias, update_biases


def test_overloaded_experts_go_down_by_one_step() -> None:
    bias = np.array([0.5, 0.0, -0.5, 0.0], np.float32)
    moved = balanced_bias(bias, np.array([10, 4, 2, 4]), 0.25)
    np.testing.assert_array_equal(moved, np.array([0.25, 0.25, -0.25, 0.25], np.float32))
    assert moved.dtype == np.float32


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=16))
def test_every_expert_moves_towards_the_mean(load: list[int]) -> None:
    moved = balanced_bias(np.zeros(len(load), np.float32), np.array(load), 1.0)
    total = sum(load)
    for expert, tokens in enumerate(load):
        assert moved[expert] == np.sign(total - tokens * len(load))


def test_layers_are_updated_in_place_and_speed_zero_is_off() -> None:
    biases = {2: paddle.zeros([2]), 5: paddle.zeros([2])}
    loads = {2: np.array([3, 1]), 5: np.array([0, 0])}
    update_biases(biases, loads, 0.0)
    assert biases[2].numpy().tolist() == [0, 0]
    update_biases(biases, loads, 0.5)
    assert biases[2].numpy().tolist() == [-0.5, 0.5]
    assert biases[5].numpy().tolist() == [0, 0]


def test_a_skewed_router_becomes_balanced() -> None:
    rng = np.random.default_rng(0)
    preference = np.array([0.3, 0.1, 0.0, -0.1])
    bias = np.zeros(4, np.float32)
    for _ in range(300):
        scores = preference + 0.3 * rng.standard_normal((512, 4))
        chosen = np.argsort(scores + bias, axis=1)[:, -2:]
        load = np.bincount(chosen.ravel(), minlength=4)
        bias = balanced_bias(bias, load, 2e-3)
    assert load.max() / load.mean() < 1.1
