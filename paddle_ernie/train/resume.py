"""From the parts of a run to a Snapshot and back; which checkpoint a run goes on from.

`run_pretrain` restores once before training; `SaveCheckpoints` collects after steps.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddle_ernie.config.compare import changes
from paddle_ernie.config.stages import PretrainConfig
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, model_arrays
from paddle_ernie.train.callbacks import LogMetrics
from paddle_ernie.train.checkpoint import Snapshot, read_checkpoint, read_newest, remove_after
from paddle_ernie.train.loop import TrainState
from paddle_ernie.train.optimizer import AdamW
from paddle_ernie.train.window import MetricWindow

logger = logging.getLogger(__name__)


@dataclass
class ResumableParts:
    """Everything in a run that has a state."""

    config: PretrainConfig
    model: ErnieMoeModel
    optimizer: AdamW
    loader: TrainLoader
    state: TrainState
    log: LogMetrics


def find_snapshot(resume: str, directory: Path) -> Snapshot | None:
    """The snapshot that `--resume` asks for; None to start from the beginning."""
    if resume == "never":
        return None
    return read_newest(directory) if resume == "auto" else read_checkpoint(Path(resume))


def collect(parts: ResumableParts) -> Snapshot:
    """Copy the run's state; training may go on as soon as this returns."""
    return Snapshot(
        step=parts.state.step,
        weights=_copies(model_arrays(parts.model)),
        optimizer=_copies(parts.optimizer.state()),
        state={
            "version": 1,
            "step": parts.state.step,
            "progress": asdict(parts.state),
            "loader": parts.loader.state(),
            "window": parts.log.window.state(),
            # Subnets and operators draw from (seed, row id): the seed and the loader's position
            # are the whole state of all random generators.
            "seed": parts.config.run.seed,
            "config": parts.config.model_dump(mode="json"),
        },
    )


def restore(parts: ResumableParts, snapshot: Snapshot, directory: Path) -> None:
    """Put every part into the snapshot's state; drop checkpoints past it."""
    state = snapshot.state
    _warn_of_changes(state["config"], parts.config.model_dump(mode="json"))
    parts.loader.restore(state["loader"])  # first: it refuses other data and settings
    load_arrays(parts.model, snapshot.weights)
    parts.optimizer.restore(snapshot.optimizer)
    for name, value in state["progress"].items():
        setattr(parts.state, name, value)
    parts.log.window = MetricWindow.from_state(state["window"])
    remove_after(directory, snapshot.step)


def _warn_of_changes(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """`launch` refuses them for the run's own folder; with an explicit path the user may know."""
    for change in changes(dict(saved), dict(present)):
        if not change.is_free:
            logger.warning("resumed with another setting than the checkpoint's: %s", change)


def _copies(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.array(array, order="C") for name, array in arrays.items()}
