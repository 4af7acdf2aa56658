"""Which files a source consists of: paths, patterns, and the Python installation's own library.

Called by the corpus. Nothing is opened here, so listing thousands of files takes a fraction of a
second; a listing's names, sizes and times are also what tells whether anything changed since the
last run.
"""

import importlib.util
import os
import sysconfig
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Literal

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.compressed import COMPRESSED_SUFFIXES
from paddle_ernie.data.megatron import megatron_files
from paddle_ernie.utils.errors import DataError

FileKind = Literal["text", "python", "html", "jsonl", "parquet", "pydoc", "megatron"]

KINDS: dict[str, FileKind] = {
    ".txt": "text",
    ".md": "text",
    ".rst": "text",
    ".py": "python",
    ".html": "html",
    ".htm": "html",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}

STDLIB_EXCLUDED = ("site-packages", "dist-packages", "__pycache__", "lib2to3/tests/data")
"""Below the standard library, but not of it, or broken on purpose."""


@dataclass(frozen=True)
class SourceFile:
    """One file and how it is read."""

    path: Path
    kind: FileKind
    size: int
    mtime_ns: int
    ctime_ns: int
    """Tells of a change that kept size and mtime, which programs can set."""


@dataclass(frozen=True)
class Listing:
    """The files of one source, in sorted order."""

    name: str
    config: SourceConfig
    root: Path
    files: tuple[SourceFile, ...]

    @property
    def named_file(self) -> bool:
        """Whether the user named one file (then it must be readable) instead of a folder."""
        return self.config.path is not None and len(self.files) == 1 and self.root.is_file()

    @property
    def num_bytes(self) -> int:
        """Size of the files as they lie on disk."""
        return sum(file.size for file in self.files)


def list_sources(sources: Sequence[SourceConfig]) -> list[Listing]:
    """Listings of all sources, named apart."""
    names: list[str] = []
    listings = []
    for source in sources:
        base = source.name or (_last_part(source.path) if source.path else source.format)
        numbered = (f"{base}-{number}" for number in count(2))
        names.append(next(name for name in chain([base], numbered) if name not in names))
        try:
            listings.append(_list_source(source, names[-1]))
        except OSError as error:
            raise DataError(
                f"source {names[-1]!r}: {error.filename}: cannot be read: {error.strerror}"
            ) from error
    return listings


def _last_part(path: Path) -> str:
    return path.name.strip(".") or path.absolute().resolve().name or "root"


def _list_source(source: SourceConfig, name: str) -> Listing:
    if source.path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        return Listing(name, source, root, tuple(_stdlib_files(source, name, root)))
    root = source.path
    if source.format == "megatron":
        files = [_source_file(path, "megatron") for path in megatron_files(root)]
        return Listing(name, source, root, tuple(files))
    if not root.exists():
        raise DataError(
            f"source {name!r}: path {root} does not exist"
            + ("" if root.is_absolute() else f" (looked in {Path.cwd()})")
        )
    if not root.is_dir():
        _check_file(source, name, root)
        return Listing(name, source, root, (_source_file(root, _kind(root, source)),))
    os.scandir(root).close()  # raises if it may not be read, which `glob` would pass over
    found = _matching(root, source, name)
    files = [_source_file(path, _kind(path, source)) for path in sorted(found)]
    if not files:
        suffixes = [suffix for suffix, kind in KINDS.items() if _takes(source, kind)]
        wanted = source.glob or f"suffixes {' '.join(suffixes)}, also with .gz or .zst"
        raise DataError(f"source {name!r}: no file below {root} matches ({wanted})")
    return Listing(name, source, root, tuple(files))


def _check_file(source: SourceConfig, name: str, path: Path) -> None:
    if not path.is_file():
        raise DataError(f"source {name!r}: path {path} is neither a file nor a folder")
    if source.glob is not None or source.exclude:
        raise DataError(
            f"source {name!r}: path {path} is a file, so `glob` and `exclude`, patterns below a "
            "folder, have no use; remove them or give the folder"
        )


def _stdlib_files(source: SourceConfig, name: str, root: Path) -> Iterator[SourceFile]:
    """The library's .py files; the topics of `help()` are read as documents, not as code."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    topics = Path(spec.origin) if spec and spec.origin else None
    wanted = source.model_copy(update={"exclude": [*source.exclude, *STDLIB_EXCLUDED]})
    found = sorted(path for path in _matching(root, wanted, name) if path.suffix == ".py")
    if not found:
        raise DataError(f"source {name!r}: no .py file in the Python library at {root} matches")
    for path in found:
        yield _source_file(path, "pydoc" if path == topics else "python")


def _matching(root: Path, source: SourceConfig, name: str) -> set[Path]:
    """Files below `root` that the patterns take. Without patterns, hidden folders are left out."""
    excluded = _glob(root, source.exclude, name)
    if source.glob is not None:
        patterns = [source.glob] if isinstance(source.glob, str) else source.glob
        found = {path for path in _glob(root, patterns, name) if path.is_file()}
        if any("**" in pattern for pattern in patterns):
            deque(_walk(root, excluded), maxlen=0)  # stops at a closed folder, `glob` does not
    else:
        found = {p for p in _walk(root, excluded) if _takes(source, _known_kind(p))}
    if not excluded:
        return found
    return {p for p in found if p not in excluded and excluded.isdisjoint(p.parents)}


def _takes(source: SourceConfig, kind: FileKind | None) -> bool:
    """Whether a folder's file of this kind is read when no pattern asks for it."""
    if source.format in ("auto", "python_stdlib"):
        return True
    return kind == source.format or (source.format == "text" and kind == "python")


def _walk(root: Path, excluded: set[Path]) -> Iterator[Path]:
    """Files of known suffixes; excluded folders are not even entered."""
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        folders[:] = [
            name for name in folders if name[0] != "." and Path(folder, name) not in excluded
        ]
        for file in files:
            path = Path(folder, file)
            if _known_kind(path) and path.is_file():
                yield path


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: folder cannot be read: {error.strerror}") from error


def _glob(root: Path, patterns: Sequence[str], name: str) -> set[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        try:
            found.update(root.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise DataError(
                f"source {name!r}: pattern {pattern!r} cannot be used: {error}; patterns are "
                f"relative to {root}, for example **/*.rst"
            ) from error
    return found


def _known_kind(path: Path) -> FileKind | None:
    inner = path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path
    return KINDS.get(inner.suffix.lower())


def _kind(path: Path, source: SourceConfig) -> FileKind:
    known = _known_kind(path)
    if source.format in ("auto", "text"):
        # Chosen by the user's own pattern or name, an unknown suffix is taken for text.
        return known if known and (source.format == "auto" or known == "python") else "text"
    return source.format  # type: ignore[return-value]  # the two formats without files came before


def _source_file(path: Path, kind: FileKind) -> SourceFile:
    status = path.stat()
    return SourceFile(path, kind, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def printable(path: Path) -> str:
    """A path for messages and JSON; bytes of its name that are not UTF-8 are shown as escapes."""
    return str(path).encode("utf-8", "backslashreplace").decode()
