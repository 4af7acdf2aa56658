"""Writes checkpoints off the training thread, and keeps the newest ones.

    training thread            writer thread
    ---------------            -------------
    save(): wait for the       write temporary folder, checksum, sync,
    previous one, copy  ---->  rename to step-XXXXXXXX, delete old ones
    arrays, return                 |
    next save(), wait()  <---- an error is raised here, in the training thread

At most one checkpoint is in flight, so memory holds one copy of the state. Whatever fails, the
previous checkpoint is whole: nothing is deleted before the new one has its final name.
"""

import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.train.checkpoint import (
    Snapshot,
    checkpoint_path,
    list_checkpoints,
    write_checkpoint,
)
from paddle_ernie.utils.errors import TrainingError

logger = logging.getLogger(__name__)

MEGABYTE = 1e6


class CheckpointWriter:
    """Owner of a run's checkpoint folder while the run trains."""

    def __init__(
        self, directory: Path, *, keep: int, config: ModelConfig, tokenizer: Tokenizer
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._config = config
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self.seconds = 0.0
        """How long the last finished write took."""

    def save(self, snapshot: Snapshot) -> None:
        """Start writing a snapshot whose arrays nobody changes any more.

        Raises what went wrong with the previous one.
        """
        self.wait()
        self._pending = self._thread.submit(self._write, snapshot)

    def check(self) -> None:
        """Raise the error of a write that has failed; do not wait for one that is running."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when the write in flight is on disk, or raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Let the write in flight finish and end the thread. Its error is logged, not raised: a
        run that is already failing must not lose its own error."""
        self._thread.shutdown(wait=True)
        if self._pending is not None and (error := self._pending.exception()):
            logger.error("%s", error)

    def _write(self, snapshot: Snapshot) -> None:
        started = time.perf_counter()
        path = checkpoint_path(self._directory, snapshot.step)
        try:
            write_checkpoint(path, snapshot, self._config, self._tokenizer)
        except OSError as error:
            raise self._failure(path, snapshot, error) from error
        self.seconds = time.perf_counter() - started
        for old in list_checkpoints(self._directory)[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def _failure(self, path: Path, snapshot: Snapshot, error: OSError) -> TrainingError:
        free = shutil.disk_usage(_nearest_existing(path)).free / MEGABYTE
        older = list_checkpoints(self._directory)
        stands = f"the newest whole one is {older[0]}" if older else "there is no older one yet"
        return TrainingError(
            f"checkpoint {path}: {error.strerror or error}; it needs "
            f"{snapshot.nbytes / MEGABYTE:.1f} MB, {free:.1f} MB are free. Nothing of it was left "
            f"behind; {stands}. Free some space or make the folder writable, then run the same "
            "command to resume."
        )


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
