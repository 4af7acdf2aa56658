"""Unpacking what the ecosystems' clients leave, and their failures. No network."""

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from paddle_ernie.data.catalog import Ecosystem, Package
from paddle_ernie.data.download import fetch
from paddle_ernie.utils.errors import DataError, InputError

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg is Debian's own")
needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is Debian's own")


def package(ecosystem: Ecosystem, *names: str) -> Package:
    return Package("x", ecosystem, names, "en", "test", "MIT", 1, 1, ("**/*",))


def place_tar(path: Path, inside: str, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(inside)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def test_npm_archive(tmp_path: Path) -> None:
    place_tar(tmp_path / "npm-words" / "words-1.2.3.tgz", "package/a.txt", b"hello")
    fetched = fetch(package("npm", "words"), tmp_path)
    assert (fetched.package, fetched.version) == ("words", "1.2.3")
    assert (fetched.root / "package" / "a.txt").read_text() == "hello"
    assert fetch(package("npm", "words"), tmp_path) == fetched


def test_wheel_and_sdist(tmp_path: Path) -> None:
    folder = tmp_path / "pypi-words"
    folder.mkdir()
    with zipfile.ZipFile(folder / "words-0.8.2.1-py3-none-any.whl", "w") as archive:
        archive.writestr("words/a.txt", "hello")
    fetched = fetch(package("pypi", "words"), tmp_path)
    assert fetched.version == "0.8.2.1"
    assert (fetched.root / "words" / "a.txt").read_text() == "hello"
    place_tar(tmp_path / "pypi-news" / "news-0.12.tar.gz", "news-0.12/a.txt", b"x")
    assert fetch(package("pypi", "news"), tmp_path).version == "0.12"


@needs_dpkg
def test_debian_archive(tmp_path: Path) -> None:
    folder = tmp_path / "debian-words"
    build = folder / "build"
    (build / "DEBIAN").mkdir(parents=True)
    (build / "usr").mkdir()
    (build / "usr" / "a.txt").write_text("hello")
    (build / "usr" / "dangling").symlink_to("of-another-package")
    (build / "DEBIAN" / "control").write_text(
        "Package: words\nVersion: 2.0-1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
    )
    command = ["dpkg-deb", "--root-owner-group", "--build", "build", "words_2.0-1_all.deb"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    fetched = fetch(package("debian", "words"), tmp_path)
    assert fetched.version == "2.0-1"
    assert (fetched.root / "usr" / "a.txt").read_text() == "hello"


def test_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    place_tar(tmp_path / "npm-evil" / "evil-1.tgz", "../../escaped.txt", b"x")
    with pytest.raises(DataError, match="damaged archive"):
        fetch(package("npm", "evil"), tmp_path)
    assert not list(tmp_path.rglob("escaped.txt"))


def test_damaged_archive_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "npm-words"
    folder.mkdir()
    (folder / "words-1.tgz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"words-1\.tgz: damaged archive .*remove it"):
        fetch(package("npm", "words"), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["words-1.tgz"]


@needs_apt
def test_missing_package_quotes_the_client(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"apt-get download no-such-package ended with 100: E: "):
        fetch(package("debian", "no-such-package"), tmp_path)


def test_missing_client_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="npm is not on this machine"):
        fetch(package("npm", "words"), tmp_path)


def test_half_an_archive_of_a_killed_client_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client in a shell script: killed half-way once, whole the second time."""
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    place_tar(tmp_path / "whole" / "words-1.tgz", "package/a.txt", b"hello")
    client.write_text(
        "#!/bin/sh\n"
        f"if [ -e {tmp_path}/again ]; then cp {tmp_path}/whole/words-1.tgz .; exit 0; fi\n"
        f"touch {tmp_path}/again; printf half > words-1.tgz; exit 1\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    with pytest.raises(DataError, match="npm pack words ended with 1"):
        fetch(package("npm", "words"), tmp_path / "work")
    fetched = fetch(package("npm", "words"), tmp_path / "work")
    assert (fetched.root / "package" / "a.txt").read_text() == "hello"
