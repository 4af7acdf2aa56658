"""manifest.json: size and SHA-256 of every file of a folder, so that damage is noticed.

Model directories and checkpoints have one, written last. `verify_manifest` names the first file
that is missing, truncated or altered; files that were added later are not its business.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.files import sha256, write_json

MANIFEST_FILE = "manifest.json"
VERSION = 1


def write_manifest(directory: Path, digests: Mapping[str, str] | None = None) -> None:
    """List all files under `directory`; `digests` are SHA-256 already known, by relative name."""
    known = digests or {}
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != MANIFEST_FILE:
            files[name] = {"size": path.stat().st_size, "sha256": known.get(name) or sha256(path)}
    write_json(directory / MANIFEST_FILE, {"version": VERSION, "files": files})


def verify_manifest(directory: Path, required: Collection[str] = ()) -> None:
    """Raise CheckpointError unless every listed file is there with its size and bytes.

    A manifest that does not list all of `required` has been altered, or is of another kind of
    folder: nothing would be known about those files.
    """
    listed = _read(directory)
    if unlisted := [name for name in required if name not in listed]:
        path = directory / MANIFEST_FILE
        raise CheckpointError(f"{path}: does not list {', '.join(unlisted)}; {_ADVICE}")
    for name, (size, digest) in listed.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing, but {MANIFEST_FILE} lists it; {_ADVICE}")
        if (found := path.stat().st_size) != size:
            raise CheckpointError(
                f"{path}: {found:,} bytes, expected {size:,}: truncated or altered; {_ADVICE}"
            )
        if (actual := sha256(path)) != digest:
            raise CheckpointError(
                f"{path}: altered: SHA-256 is {actual}, expected {digest}; {_ADVICE}"
            )


_ADVICE = "restore it from a backup, or use another checkpoint"


def _read(directory: Path) -> dict[str, tuple[int, str]]:
    """Name -> (size, digest)."""
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; {directory} is not whole, or no such folder")
    try:
        entries = json.loads(path.read_bytes())["files"]
        return {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: not a manifest ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
