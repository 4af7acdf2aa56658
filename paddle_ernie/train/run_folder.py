"""RunFolder: where a training run keeps its files, and the lock that keeps a second one out.

<output_dir>/
  config.yaml        resolved configuration
  metrics.jsonl      one record a line
  checkpoints/       step-XXXXXXXX/
  model/             the finished model
  summary.json       figures of the finished run
  .lock              held by the process that trains here
"""

import fcntl
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.utils.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """Resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Log records."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Model directory of the finished run."""
        return self.path / "model"

    @property
    def summary(self) -> Path:
        """Figures of the finished run."""
        return self.path / "summary.json"

    def read_summary(self) -> dict[str, Any] | None:
        """What summary.json says; None while the run has not finished, or if it cannot be read (the
        run then finishes again and replaces it)."""
        try:
            return dict(json.loads(self.summary.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def clear(self) -> None:
        """Forget an earlier run; the token cache stays."""
        for folder in (self.checkpoints, self.model):
            if folder.exists():
                shutil.rmtree(folder)
        for file in (self.metrics, self.summary):
            file.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Drop hidden folders in which a killed process was writing a model or a checkpoint."""
        for path in (*self.path.glob(".model.*"), *self.checkpoints.glob(".step-*")):
            logger.info("%s: removed, unfinished", path)
            shutil.rmtree(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; InputError when it cannot be written or is taken.

        The lock belongs to the open file, so a killed process leaves none behind.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / ".lock").open("w")
        except OSError as error:
            raise InputError(
                f"run.output_dir {self.path}: {error.strerror}; it must be a folder that can be "
                "written. Give another one with -o run.output_dir=PATH."
            ) from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"run.output_dir {self.path}: another process is training in it; wait for it, "
                    "stop it, or give another folder with -o run.output_dir=PATH"
                ) from error
            yield
