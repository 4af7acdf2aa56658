"""Sums of a log window: token-weighted means, bits per byte, and a state that survives JSON."""

import json
import math

import numpy as np
import pytest

from paddle_ernie.data.types import Batch
from paddle_ernie.train.loop import StepEvent, TrainState
from paddle_ernie.train.step import Mean, StepResult
from paddle_ernie.train.window import MetricWindow

TOKEN_BYTES = np.array([0, 1, 2, 4], np.int64)
LABELS = np.array([[3, 2, -100, 0]], np.int64)  # 6 bytes: the end-of-text token 0 stands for none


def make_event(nats: float, targets: int, applied: bool = True) -> StepEvent:
    batch = Batch(*[LABELS] * 4, row_ids=np.array([0]))
    result = StepResult(
        tokens=4,
        targets=targets,
        main=Mean(nats, targets),
        axes={"full": Mean(nats, targets)},
        mtp=Mean(2 * nats, targets),
        loads={1: np.array([6, 2]), 2: np.array([4, 4])},
        entropy={1: Mean(0.5, 1), 2: Mean(1.0, 1)},
        grad_norm=2.0,
        applied=applied,
    )
    return StepEvent(TrainState(step=1), batch, result, is_last=False)


def test_losses_weigh_every_target_equally() -> None:
    window = MetricWindow()
    window.add(make_event(30.0, 10), TOKEN_BYTES)
    window.add(make_event(10.0, 30), TOKEN_BYTES)
    scalars = window.scalars()
    assert scalars["loss/train"] == 1.0
    assert scalars["loss/axis/full"] == 1.0
    assert scalars["loss/mtp"] == 2.0
    assert scalars["train/perplexity"] == pytest.approx(math.e)
    assert scalars["train/bits_per_byte"] == pytest.approx(40.0 / math.log(2) / 12)
    assert scalars["train/grad_norm"] == 2.0


def test_routing_per_layer_and_over_layers() -> None:
    window = MetricWindow()
    window.add(make_event(1.0, 1), TOKEN_BYTES)
    scalars = window.scalars()
    assert scalars["moe/layer_01/load_max_over_mean"] == 1.5
    assert scalars["moe/layer_02/load_max_over_mean"] == 1.0
    assert scalars["moe/load_max_over_mean"] == 1.5
    assert scalars["moe/layer_01/entropy"] == 0.5
    assert scalars["moe/entropy"] == 0.75
    np.testing.assert_array_equal(window.histograms()["moe/layer_01/load"], [6, 2])


def test_skipped_steps_only_count_as_skipped() -> None:
    window = MetricWindow()
    window.add(make_event(math.nan, 5, applied=False), TOKEN_BYTES)
    assert math.isnan(window.scalars()["loss/train"])
    window.add(make_event(3.0, 3), TOKEN_BYTES)
    assert window.scalars()["loss/train"] == 1.0
    assert window.scalars()["train/skipped_in_window"] == 1.0


def test_state_continues_exactly_through_json() -> None:
    straight, first = MetricWindow(), MetricWindow()
    for number in range(4):
        event = make_event(0.1 + number / 3, 7 + number)
        straight.add(event, TOKEN_BYTES)
        if number < 2:
            first.add(event, TOKEN_BYTES)
    resumed = MetricWindow.from_state(json.loads(json.dumps(first.state())))
    for number in range(2, 4):
        resumed.add(make_event(0.1 + number / 3, 7 + number), TOKEN_BYTES)
    assert resumed.scalars() == straight.scalars()
    assert json.dumps(resumed.state()) == json.dumps(straight.state())
