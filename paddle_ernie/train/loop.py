"""TrainLoop: steps until `max_steps`, and what happens around each of them.

    until max_steps:
        stop asked for?  -> checkpoint, Interrupted
        batch   <- loader
        result  <- Stepper: forward, backward, update, balancing
        callbacks: log, evaluate, checkpoint

`run_pretrain` builds one and calls `run`. The loop knows nothing of files or metrics; callbacks do.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.data.types import Batch
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.train.schedule import learning_rate
from paddle_ernie.train.step import Stepper, StepResult
from paddle_ernie.utils.errors import Interrupted, TrainingError
from paddle_ernie.utils.options import StopFlag

logger = logging.getLogger(__name__)


@dataclass
class TrainState:
    """How far the run is. Saved in every checkpoint."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    tokens: int = 0
    """Input tokens seen."""
    skipped_steps: int = 0
    """Steps whose loss or gradient was not finite."""
    skipped_in_row: int = 0
    """Of those, how many came last without a good one between."""
    train_seconds: float = 0.0
    """Time in loader and steps, over all starts of the run."""


@dataclass
class Stopwatch:
    """Seconds per activity since the last `take`."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Add the time of the body to `activity`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[activity] = self.seconds.get(activity, 0.0) + spent

    def take(self) -> dict[str, float]:
        """What was measured; starts again from nothing."""
        taken, self.seconds = self.seconds, {}
        return taken


@dataclass(frozen=True)
class StepEvent:
    """What callbacks learn about the step that was just done."""

    state: TrainState
    batch: Batch
    result: StepResult
    is_last: bool
    """The run's last step."""

    def is_due(self, every: int) -> bool:
        """Whether something that happens every `every` steps, and after the last, is due."""
        return self.is_last or self.state.step % every == 0


Callback = Callable[[StepEvent], None]


@dataclass
class TrainLoop:
    """Drives a Stepper over a loader."""

    stepper: Stepper
    loader: TrainLoader
    train: TrainConfig
    state: TrainState
    stopwatch: Stopwatch
    progress: Progress
    stop: StopFlag
    callbacks: Sequence[Callback]
    """Called in order after every step."""
    save: Callable[[], None]
    """Puts a checkpoint on disk before it returns; called when the run is asked to stop."""

    def run(self) -> None:
        """Train to the last step. Raises Interrupted after a requested stop, TrainingError when
        too many steps in a row are not finite or a checkpoint cannot be written."""
        with self.progress.task("train", total=self.train.max_steps, unit="step") as task:
            task.skip(self.state.step)
            while self.state.step < self.train.max_steps:
                if self.stop:
                    self._leave()
                event = self._step()
                for callback in self.callbacks:
                    callback(event)
                task.advance(1, loss=event.result.main.mean, tokens_per_s=self._speed())

    def _step(self) -> StepEvent:
        state, before = self.state, sum(self._busy())
        with self.stopwatch.measure("data"):
            batch = self.loader.next_batch()
        with self.stopwatch.measure("step"):
            rate = learning_rate(state.step + 1, self.train)
            result = self.stepper.train_step(batch, rate)
        state.step += 1
        state.tokens += result.tokens
        state.train_seconds += sum(self._busy()) - before
        self._count_skipped(result)
        return StepEvent(state, batch, result, is_last=state.step == self.train.max_steps)

    def _count_skipped(self, result: StepResult) -> None:
        state, limit = self.state, self.train.max_nonfinite_steps
        if result.applied:
            state.skipped_in_row = 0
            return
        state.skipped_steps += 1
        state.skipped_in_row += 1
        found = f"loss {result.main.mean}, gradient norm {result.grad_norm}"
        logger.warning("step %d skipped: %s", state.step, found)
        if state.skipped_in_row > limit:
            raise TrainingError(
                f"step {state.step}: {state.skipped_in_row} steps in a row were not finite "
                f"({found}), train.max_nonfinite_steps allows {limit}. Lower "
                f"train.learning_rate (now {result.learning_rate:g}) or raise train.warmup_steps, "
                "and resume from a checkpoint before the trouble began."
            )

    def _leave(self) -> None:
        where = (
            f"stopped by {self.stop.reason} after step {self.state.step} of {self.train.max_steps}"
        )
        if self.state.step == 0:
            raise Interrupted(f"{where}; nothing was trained yet")
        self.save()
        raise Interrupted(f"{where}; a checkpoint was saved, the same command goes on from it")

    def _busy(self) -> tuple[float, float]:
        seconds = self.stopwatch.seconds
        return seconds.get("data", 0.0), seconds.get("step", 0.0)

    def _speed(self) -> float:
        return self.state.tokens / max(self.state.train_seconds, 1e-9)
