"""The loop around a real Stepper: order of events, stopping, counting what was skipped."""

import math
from collections.abc import Callable

import pytest

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.data.types import Batch
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.train.loop import StepEvent, Stopwatch, TrainLoop, TrainState
from paddle_ernie.train.optimizer import AdamW, trainable_parameters
from paddle_ernie.train.schedule import learning_rate
from paddle_ernie.train.step import Stepper
from paddle_ernie.utils.errors import Interrupted, TrainingError
from paddle_ernie.utils.options import StopFlag


class ListLoader:
    """Batches in a given order, by the loader's interface."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = iter(batches)

    def next_batch(self) -> Batch:
        return next(self._batches)


@pytest.fixture
def make_loop(
    make_model: Callable[..., ErnieMoeModel], make_batch: Callable[..., Batch]
) -> Callable[..., TrainLoop]:
    def make(callbacks=(), save=lambda: None, **train) -> TrainLoop:
        settings = {
            "max_steps": 6,
            "global_batch_size": 4,
            "learning_rate": 1e-2,
            "warmup_steps": 3,
        }
        config = TrainConfig(**settings | train)
        model = make_model()
        optimizer = AdamW(trainable_parameters(model), config)
        return TrainLoop(
            stepper=Stepper(model, optimizer, config, seed=1, space=None),
            loader=ListLoader([make_batch(4, seed) for seed in range(config.max_steps)]),
            train=config,
            state=TrainState(),
            stopwatch=Stopwatch(),
            progress=Progress(),
            stop=StopFlag(),
            callbacks=callbacks,
            save=save,
        )

    return make


def poison(loop: TrainLoop, value: float) -> None:
    """From now on every loss is not finite."""
    loop.stepper.model.norm.set_value(loop.stepper.model.norm * value)


def test_callbacks_see_every_step_in_order_with_its_rate(make_loop) -> None:
    events: list[StepEvent] = []
    steps: list[int] = []

    def watch(event: StepEvent) -> None:
        events.append(event)
        steps.append(event.state.step)

    loop = make_loop(callbacks=(watch,))
    loop.run()
    assert steps == [1, 2, 3, 4, 5, 6]
    assert [event.is_last for event in events] == [False] * 5 + [True]
    assert [e.result.learning_rate for e in events] == [
        learning_rate(step, loop.train) for step in steps
    ]
    assert loop.state.tokens == 6 * 4 * 24
    assert loop.state.train_seconds == pytest.approx(sum(loop.stopwatch.seconds.values()))


def test_stop_saves_after_the_step_under_way(make_loop) -> None:
    saved: list[int] = []

    def stop_at_two(event: StepEvent) -> None:
        if event.state.step == 2:
            loop.stop.set("SIGTERM")

    loop = make_loop(callbacks=(stop_at_two,), save=lambda: saved.append(loop.state.step))
    with pytest.raises(Interrupted, match="SIGTERM after step 2 of 6"):
        loop.run()
    assert saved == [2]
    loop.stop = StopFlag()
    loop.run()
    assert loop.state.step == 6


def test_stop_during_the_last_step_lets_the_run_finish(make_loop) -> None:
    loop = make_loop(callbacks=(lambda event: event.is_last and loop.stop.set("SIGINT"),))
    loop.run()
    assert loop.state.step == 6


def test_skipped_steps_in_a_row_are_counted_and_limited(make_loop) -> None:
    def poison_third(event: StepEvent) -> None:
        if event.state.step == 2:
            poison(loop, math.nan)

    loop = make_loop(callbacks=(poison_third,), max_nonfinite_steps=2)
    with pytest.raises(TrainingError, match="step 5: 3 steps in a row were not finite"):
        loop.run()
    assert loop.state.skipped_steps == loop.state.skipped_in_row == 3


def test_a_good_step_ends_the_row(make_loop) -> None:
    good = {}

    def poison_then_heal(event: StepEvent) -> None:
        if event.state.step == 1:
            good["norm"] = loop.stepper.model.norm.numpy()
            poison(loop, math.inf)
        if event.state.step == 2:
            loop.stepper.model.norm.set_value(good["norm"])

    loop = make_loop(callbacks=(poison_then_heal,), max_nonfinite_steps=1)
    loop.run()
    assert (loop.state.skipped_steps, loop.state.skipped_in_row) == (1, 0)


def test_due_dates() -> None:
    def is_due(step: int, every: int, is_last: bool = False) -> bool:
        return StepEvent(TrainState(step=step), None, None, is_last).is_due(every)

    assert [step for step in range(1, 10) if is_due(step, 3)] == [3, 6, 9]
    assert is_due(7, 3, is_last=True)


def test_stopwatch_adds_up_and_restarts() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch.measure("data"):
            pass
    with pytest.raises(ZeroDivisionError), watch.measure("step"):
        1 / 0  # noqa: B018
    taken = watch.take()
    assert set(taken) == {"data", "step"} and all(spent > 0 for spent in taken.values())
    assert watch.take() == {}
