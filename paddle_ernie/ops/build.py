"""The compiled operators' cache: built once per machine, safe when several processes start at once.

    sources, flags, compiler, Paddle, Python --hash--> <cache>/operators/<key>/
                                                           paddle_ernie_operators.so
                                                           building/   renamed when it is complete
                                                       <cache>/operators/<key>.lock

Called by `library` at first use and by `python -m paddle_ernie.ops build`. Whoever holds the lock
builds, the others wait and say so; the lock of a killed process is free again, and what it left is
removed by the next one that builds.
"""

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import paddle

from paddle_ernie.ops.compiler import (
    CannotBuildError,
    Compiler,
    compile_library,
    describe,
    find_compiler,
)
from paddle_ernie.utils.errors import InputError, PaddleErnieError

logger = logging.getLogger(__name__)

SOURCE_DIR = Path(__file__).parent / "csrc" / "cpu"
LIBRARY_FILE = "paddle_ernie_operators.so"
BUILDING = "building"
LOCK_POLL_SECONDS = 0.2
LOCK_TIMEOUT_SECONDS = 3600  # a build takes half a minute; the kernel frees a dead process's lock


@dataclass(frozen=True)
class Key:
    """What one library was made from, as short hashes; its folder's name in the cache."""

    host: str
    """Python's and Paddle's versions: what it can be loaded into."""
    code: str
    """Sources and flags."""
    compiler: str

    @property
    def folder(self) -> str:
        return f"{self.host}-{self.code}-{self.compiler}"


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`PADDLE_ERNIE_CACHE`, else the user's cache folder."""
    chosen = environment.get("PADDLE_ERNIE_CACHE")
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "paddle_ernie"


def extra_flags(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """`PADDLE_ERNIE_OPS_FLAGS`: compiler flags after ours, such as a sanitizer's."""
    return tuple(shlex.split(environment.get("PADDLE_ERNIE_OPS_FLAGS", "")))


def build(
    source_dir: Path = SOURCE_DIR, *, flags: Sequence[str] | None = None, force: bool = False
) -> Path:
    """Path of the library, compiled now if it is not in the cache yet, or if `force`.

    Without a compiler, a library of the same sources that another one made is good; where there is
    none, CannotBuildError says what to install.
    """
    extra = extra_flags() if flags is None else tuple(flags)
    folder = cache_dir() / "operators"
    try:
        compiler = find_compiler()
    except CannotBuildError:
        made = made_elsewhere(folder, source_dir, extra)
        if made is None:
            raise
        return made
    target = folder / key(source_dir, compiler, extra).folder / LIBRARY_FILE
    if target.is_file() and not force:
        return target
    with _locked(target):
        if force or not target.is_file():
            _build(source_dir, compiler, target, extra)
    return target


def key(source_dir: Path, compiler: Compiler, extra: Sequence[str]) -> Key:
    """Changes with everything that could change the library."""
    code = hashlib.sha256(repr(tuple(extra)).encode())
    for path in sorted(path for path in source_dir.rglob("*") if path.is_file()):
        code.update(str(path.relative_to(source_dir)).encode() + b"\0")
        code.update(hashlib.sha256(path.read_bytes()).digest())
    host = f"{sys.implementation.cache_tag} {paddle.__version__}"
    return Key(
        hashlib.sha256(host.encode()).hexdigest()[:8],
        code.hexdigest()[:16],
        hashlib.sha256(describe(compiler, extra).encode()).hexdigest()[:8],
    )


def made_elsewhere(folder: Path, source_dir: Path, extra: Sequence[str]) -> Path | None:
    """The newest library of these sources, Paddle and Python, whatever compiler made it."""
    wanted = key(source_dir, Compiler((), ""), extra)
    found = folder.glob(f"{wanted.host}-{wanted.code}-*/{LIBRARY_FILE}")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def build_id(library: Path) -> str:
    """Sources, flags and compiler of a library, from where it lies: equal ids, equal code."""
    return library.parent.name.partition("-")[2]


def _build(source_dir: Path, compiler: Compiler, target: Path, extra: Sequence[str]) -> None:
    """Compile beside `target` and rename; the caller holds the lock."""
    _remove_leftovers(target)
    scratch = target.parent / BUILDING
    scratch.mkdir(parents=True)
    sources = sorted(source_dir.glob("*.cc"))
    progress = _Progress("compiling operators", sys.stderr)
    try:
        compile_library(compiler, sources, scratch / LIBRARY_FILE, extra, progress.advance)
        os.replace(scratch / LIBRARY_FILE, target)
        progress.end(f"operators compiled in {progress.seconds:.0f} s, kept in {target.parent}")
    except BaseException:
        progress.end("operators not compiled")
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """What killed builds left: ours, and any other whose lock is free."""
    shutil.rmtree(target.parent / BUILDING, ignore_errors=True)
    for scratch in target.parent.parent.glob(f"*/{BUILDING}"):
        with open(_lock_path(scratch.parent), "w") as lock:
            if _try_lock(lock):
                shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target`'s folder; say so if another process has it."""
    path = _lock_path(target.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path, "a+")  # noqa: SIM115  closed below
    except OSError as error:
        raise InputError(
            f"{path.parent}: {error.strerror}; the compiled operators are kept there. Set "
            "PADDLE_ERNIE_CACHE to a folder this user may write, or PADDLE_ERNIE_OPS=off to run "
            "without them, several times slower"
        ) from error
    with lock:
        _wait_for(lock)
        yield


def _wait_for(lock: TextIO) -> None:
    if _try_lock(lock):
        return
    logger.info("another process compiles the operators; waiting for it")
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            raise PaddleErnieError(
                f"{lock.name}: another process has compiled operators for "
                f"{LOCK_TIMEOUT_SECONDS} s; end it and start again"
            )
        time.sleep(LOCK_POLL_SECONDS)


def _try_lock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.lock"


class _Progress:
    """One line that is redrawn on a terminal; in a log, a line at the start and one at the end."""

    def __init__(self, what: str, stream: TextIO) -> None:
        self._what, self._stream = what, stream
        self._redraws = stream.isatty()
        self._started = time.monotonic()
        if not self._redraws:
            logger.info("%s, once per machine", what)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` files are compiled."""
        self._draw(f"{self._what}, once per machine: {done} of {total} files, {self.seconds:.0f} s")

    def end(self, text: str) -> None:
        """Replace the line by a record of what came of it."""
        self._draw("")
        logger.info("%s", text)

    def _draw(self, text: str) -> None:
        if self._redraws:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
