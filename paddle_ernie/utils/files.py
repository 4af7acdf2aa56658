"""Files that are either whole or absent: written beside the target, synced, then renamed."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HASH_CHUNK_BYTES = 1 << 22  # 4 MiB: large enough that hashing, not the read call, sets the pace


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write(temporary)` with a name in `path`'s folder, sync it, rename it over `path`.

    On any error the temporary file is removed and `path` is what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) atomically."""
    write_atomic(path, lambda temporary: _write_text(temporary, text))


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextmanager
def directory_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`: it replaces `path`, or on an error is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    temporary.chmod(0o755)
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            sync(file)
        sync(temporary)
        replace_directory(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_directory(source: Path, target: Path) -> None:
    """Rename `source` to `target`; an existing `target` is moved aside first and then removed."""
    aside = None
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        os.rename(target, aside / target.name)
    os.rename(source, target)
    sync(target.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
