"""Checkpoints: everything a run needs to go on as if it had never stopped.

    <output_dir>/checkpoints/step-00000200/
        model.safetensors  config.json  tokenizer.json  tokenizer_config.json   a model directory
        optimizer.safetensors                                                   AdamW moments
        trainer_state.json                       steps, loader position, seeds, open log window
        manifest.json                            size and SHA-256 of each file

A checkpoint is a model directory with more in it: any tool that takes a model takes one. It is
written under a hidden name beside its place, synced, and renamed when whole. Random generators
have no state to save: data order, subnets and operators draw from (seed, row or step).
"""

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import WEIGHTS_FILE, write_config
from paddle_ernie.train.tensor_file import tensors_nbytes, write_tensors
from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.files import directory_atomic, write_json
from paddle_ernie.utils.manifest import verify_manifest, write_manifest

logger = logging.getLogger(__name__)

OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "trainer_state.json"
NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after a step. Arrays are copies that nobody else changes."""

    step: int
    weights: dict[str, np.ndarray]
    """Name -> array as in a model directory."""
    optimizer: dict[str, np.ndarray]
    """As `AdamW.state` names them."""
    state: dict[str, Any]
    """JSON: everything that is not a tensor."""

    @property
    def nbytes(self) -> int:
        """Size on disk, but for a few small files."""
        return tensors_nbytes(self.weights) + tensors_nbytes(self.optimizer)


def checkpoint_path(directory: Path, step: int) -> Path:
    """Folder of the checkpoint after `step` steps."""
    return directory / f"step-{step:08d}"


def list_checkpoints(directory: Path) -> list[Path]:
    """Checkpoint folders, newest first; whether they are whole is not looked at."""
    found = [path for path in directory.glob("step-*") if NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Step that a checkpoint folder is named after."""
    match = NAME.fullmatch(path.name)
    assert match, f"{path} is not named like a checkpoint"
    return int(match[1])


def write_checkpoint(
    path: Path, snapshot: Snapshot, config: ModelConfig, tokenizer: Tokenizer
) -> None:
    """Write a whole checkpoint or, on any error, nothing."""
    with directory_atomic(path) as folder:
        write_config(folder, config)
        tokenizer.save(folder)
        write_json(folder / STATE_FILE, snapshot.state)
        known = {
            WEIGHTS_FILE: write_tensors(folder / WEIGHTS_FILE, snapshot.weights),
            OPTIMIZER_FILE: write_tensors(folder / OPTIMIZER_FILE, snapshot.optimizer),
        }
        write_manifest(folder, known)


def read_checkpoint(path: Path) -> Snapshot:
    """The snapshot in `path`. CheckpointError when it is missing, altered or incomplete."""
    if not path.is_dir():
        raise CheckpointError(f"checkpoint {path}: no such folder; give a step-XXXXXXXX folder")
    for name in (OPTIMIZER_FILE, STATE_FILE):
        if (path / WEIGHTS_FILE).exists() and not (path / name).exists():
            raise CheckpointError(
                f"checkpoint {path}: no {name}; this is not a whole training checkpoint. To start "
                "from a model's weights only, use init_from."
            )
    verify_manifest(path, required=(WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE))
    state = json.loads((path / STATE_FILE).read_text())
    return Snapshot(
        step=state["step"],
        weights=load_file(path / WEIGHTS_FILE),
        optimizer=load_file(path / OPTIMIZER_FILE),
        state=state,
    )


def read_newest(directory: Path) -> Snapshot | None:
    """The newest whole checkpoint; damaged ones are named in a warning and passed over.

    None when there is no checkpoint at all; CheckpointError when all there are are damaged.
    """
    paths = list_checkpoints(directory)
    for path in paths:
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            logger.warning("refused: %s", error)
    if paths:
        raise CheckpointError(
            f"{directory}: none of {len(paths)} checkpoints is whole; restore one from a backup, "
            "or start over with --resume never"
        )
    return None


def remove_after(directory: Path, step: int) -> None:
    """Drop checkpoints past `step`: they belong to a continuation that is being left."""
    for path in list_checkpoints(directory):
        if step_of(path) > step:
            logger.warning("%s: removed, training goes on from step %d", path, step)
            shutil.rmtree(path)
