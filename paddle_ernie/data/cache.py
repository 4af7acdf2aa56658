"""Folders of the corpus cache, the lock that builders hold, and what a full disk looks like.

    cache/
      tokenizers/<key>/   tokenizer.json, tokenizer_config.json
      tokens/<key>/       one source's tokens (see `store`); key = tokenizer + document hashes
      prepared/<key>/     which of these a configuration uses, and its summary; key = settings and
                          the sources' file names, sizes and times, so a warm start reads no text

Everything is written aside, carries a manifest of SHA-256 sums, and is renamed into place. Readers
take no lock. Builders do, so that two runs started together build once and share the result.
"""

import errno
import fcntl
import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddle_ernie.utils.errors import InputError, TrainingError

logger = logging.getLogger(__name__)

LOCK_POLL_SECONDS = 0.1
LOCK_LOG_SECONDS = 10.0
KEY_CHARACTERS = 32
"""128 bits of a SHA-256 name a folder."""


class Cache:
    """A cache folder; made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tokenizer(self, key: str) -> Path:
        """Folder of a tokenizer."""
        return self.root / "tokenizers" / key

    def tokens(self, key: str) -> Path:
        """Folder of a token store."""
        return self.root / "tokens" / key

    def prepared(self, key: str) -> Path:
        """Folder that says what a configuration uses."""
        return self.root / "prepared" / key

    @contextmanager
    def building(self, check: Callable[[], None]) -> Iterator[Path]:
        """Hold the builders' lock and yield a scratch folder. `check` may raise while waiting.

        The system frees the lock of a process that dies, so the wait ends with the other build.
        """
        with self._disk_errors():
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / ".lock").open("w") as lock:
                _acquire(lock.fileno(), self.root, check)
                self._sweep()
                with tempfile.TemporaryDirectory(prefix=".scratch.", dir=self.root) as scratch:
                    yield Path(scratch)

    def _sweep(self) -> None:
        """Remove what killed builders left; with the lock held, nobody is using it."""
        leftovers = [*self.root.glob(".scratch.*"), *self.root.glob("*/.*")]
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TrainingError(
                    f"cache {self.root}: the disk is full ({_free_megabytes(self.root)} MB free); "
                    "free space or set data.cache_dir to another disk"
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
                raise InputError(
                    f"cache {self.root}: cannot be written ({error.strerror}: {error.filename}); "
                    "set data.cache_dir to a folder you may write to"
                ) from error
            raise


def digest(*parts: bytes | str | list[Any] | dict[str, Any]) -> str:
    """A key from bytes, strings and JSON values; the boundaries between parts count."""
    total = hashlib.sha256()
    for part in parts:
        if not isinstance(part, bytes):
            part = json.dumps(part, sort_keys=True, default=str).encode()
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:KEY_CHARACTERS]


def _acquire(descriptor: int, root: Path, check: Callable[[], None]) -> None:
    next_log = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            check()
        if time.monotonic() >= next_log:
            next_log = time.monotonic() + LOCK_LOG_SECONDS
            logger.info("cache %s: another process is preparing data; waiting for it", root)
        time.sleep(LOCK_POLL_SECONDS)


def _free_megabytes(root: Path) -> int:
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    return shutil.disk_usage(existing).free // 1_000_000
