"""Batches and schedules that do not add up are refused."""

import pytest
from pydantic import ValidationError

from paddle_ernie.config.train import TrainConfig


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"global_batch_size": 16, "micro_batch_size": 5},
            "global_batch_size 16 is not a multiple",
        ),
        (
            {"warmup_steps": 6, "decay_steps": 5},
            "warmup_steps 6 . decay_steps 5 exceed max_steps 10",
        ),
        ({"learning_rate": 1e-3, "min_learning_rate": 2e-3}, "min_learning_rate 0.002 exceeds"),
        ({"adam_beta1": 1.0}, "less than 1"),
    ],
)
def test_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig(max_steps=10, **values)


def test_micro_rows() -> None:
    assert TrainConfig(max_steps=1, global_batch_size=8).micro_rows == 8
    assert TrainConfig(max_steps=1, global_batch_size=8, micro_batch_size=2).micro_rows == 2


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TrainConfig(max_steps=1).max_steps = 2
