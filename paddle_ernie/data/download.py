"""Fetch and unpack one package with its ecosystem's own client: apt-get, npm or pip.

Called by `mixtures`. Nothing is installed and no root rights are needed. Whatever the client prints
is shown only if it fails.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paddle_ernie.data.catalog import Package
from paddle_ernie.utils.errors import DataError, InputError

TIMEOUT_SECONDS = 1800.0
"""For one call of a client; the largest package has 85 MB."""

OUTPUT_SHOWN = 600
"""Last characters of a failing client's output that the error quotes."""


@dataclass(frozen=True)
class Fetched:
    """An unpacked package."""

    root: Path
    package: str
    """The name under which it was found."""
    version: str


def fetch(package: Package, work: Path) -> Fetched:
    """Download and unpack into a folder of `work`; a package fetched before is taken from there."""
    fetchers = {"debian": _fetch_debian, "npm": _fetch_npm, "pypi": _fetch_pypi}
    errors = []
    for name in package.package:
        folder = work / f"{package.ecosystem}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return fetchers[package.ecosystem](name, folder)
        except DataError as error:
            errors.append(str(error))
    raise DataError(f"package {package.name}: " + "; ".join(errors))


def _fetch_debian(name: str, folder: Path) -> Fetched:
    archive = _downloaded(folder, f"{name}_*.deb", ["apt-get", "download", name])
    version = _run(["dpkg-deb", "--field", archive.name, "Version"], folder).strip()
    root = folder / "files"
    if not root.exists():
        with _whole_or_absent(root) as unpacked:
            _run(["dpkg", "-x", archive.name, str(unpacked)], folder)
    return Fetched(root, name, version)


def _fetch_npm(name: str, folder: Path) -> Fetched:
    archive = _downloaded(folder, f"{name}-*.tgz", ["npm", "pack", name])
    return Fetched(_unpack(archive), name, archive.stem.removeprefix(f"{name}-"))


def _fetch_pypi(name: str, folder: Path) -> Fetched:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", name]
    archive = _downloaded(folder, "*-*.*", command)
    version = re.match(r"[^-]+-([^-]+?)(-|\.tar|\.zip)", archive.name)
    return Fetched(_unpack(archive), name, version[1] if version else "unknown")


def _downloaded(folder: Path, pattern: str, command: list[str]) -> Path:
    """The archive in `folder`, which `command` fetches if it is not yet there.

    It runs in a folder of its own: a client that was killed leaves half an archive behind.
    """
    if found := _archives(folder, pattern):
        return found[-1]
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        _run(command, Path(aside))
        if not (found := _archives(Path(aside), pattern)):
            raise DataError(f"{' '.join(command)} ended well but left no {pattern} in its folder")
        return found[-1].rename(folder / found[-1].name)


def _archives(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _unpack(archive: Path) -> Path:
    root = archive.parent / "files"
    if root.exists():
        return root
    try:
        with _whole_or_absent(root) as unpacked:
            if archive.suffix in (".whl", ".zip"):
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(unpacked)
            else:
                with tarfile.open(archive) as packed:
                    packed.extractall(unpacked, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        fault = str(error).partition("\n")[0]
        raise DataError(f"{archive}: damaged archive ({fault}); remove it and try again") from error
    return root


@contextmanager
def _whole_or_absent(root: Path) -> Iterator[Path]:
    """A folder to unpack into, which becomes `root`. Not synced: it can be fetched again."""
    unpacked = Path(tempfile.mkdtemp(dir=root.parent))
    try:
        yield unpacked
        unpacked.rename(root)
    except BaseException:
        shutil.rmtree(unpacked, ignore_errors=True)
        raise


def _run(command: list[str], folder: Path) -> str:
    """Standard output of a client."""
    if shutil.which(command[0]) is None:
        raise InputError(
            f"{command[0]} is not on this machine, so packages of its kind cannot be fetched; "
            "install it or leave them out (--list shows each package's ecosystem)"
        )
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{' '.join(command)}: not done after {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        tail = (done.stderr.strip() or done.stdout.strip())[-OUTPUT_SHOWN:]
        raise DataError(f"{' '.join(command)} ended with {done.returncode}: {tail}")
    return done.stdout
