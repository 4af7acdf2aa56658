"""Learning-rate schedules at and around their boundaries."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.train.schedule import learning_rate


def make_config(kind: str, **overrides: object) -> TrainConfig:
    values = {
        "max_steps": 100,
        "learning_rate": 1e-2,
        "min_learning_rate": 1e-4,
        "warmup_steps": 10,
        "decay_steps": 20 if kind == "wsd" else 0,
        "lr_scheduler_type": kind,
    }
    return TrainConfig(**(values | overrides))


@pytest.mark.parametrize("kind", ["wsd", "cosine", "constant"])
def test_warmup_is_linear_and_ends_at_the_peak(kind: str) -> None:
    config = make_config(kind)
    rates = [learning_rate(step, config) for step in range(1, 11)]
    assert rates == pytest.approx([1e-3 * step for step in range(1, 11)])


@pytest.mark.parametrize("kind", ["wsd", "cosine"])
def test_last_step_has_the_minimum_and_later_ones_keep_it(kind: str) -> None:
    config = make_config(kind)
    assert learning_rate(100, config) == pytest.approx(1e-4)
    assert learning_rate(150, config) == pytest.approx(1e-4)


def test_wsd_plateau_ends_where_the_decay_begins() -> None:
    config = make_config("wsd")
    assert learning_rate(80, config) == 1e-2
    assert learning_rate(81, config) == pytest.approx(1e-4 + 9.9e-3 * (1 - math.sqrt(1 / 20)))
    assert learning_rate(85, config) == pytest.approx(1e-4 + 9.9e-3 * 0.5)


def test_cosine_is_halfway_in_the_middle() -> None:
    assert learning_rate(55, make_config("cosine")) == pytest.approx((1e-2 + 1e-4) / 2)


def test_constant_never_decays() -> None:
    assert learning_rate(100, make_config("constant")) == 1e-2


def test_no_warmup_starts_at_the_peak_plateau() -> None:
    assert learning_rate(1, make_config("wsd", warmup_steps=0)) == 1e-2


def test_warmup_over_the_whole_run() -> None:
    config = make_config("cosine", warmup_steps=100)
    assert learning_rate(100, config) == 1e-2


def test_step_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, make_config("wsd"))


@given(
    kind=st.sampled_from(["wsd", "cosine"]),
    max_steps=st.integers(1, 50),
    data=st.data(),
)
def test_rises_in_warmup_then_never_rises_again(
    kind: str, max_steps: int, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, max_steps))
    decay = data.draw(st.integers(0, max_steps - warmup)) if kind == "wsd" else 0
    config = make_config(kind, max_steps=max_steps, warmup_steps=warmup, decay_steps=decay)
    rates = [learning_rate(step, config) for step in range(1, max_steps + 1)]
    rising, falling = rates[:warmup], rates[max(warmup - 1, 0) :]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(0 < rate <= 1e-2 for rate in rates)
