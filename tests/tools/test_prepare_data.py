"""The command as a user types it: folders always, one real package with `-m slow`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "tools" / "prepare_data.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_list_shows_names_and_licences() -> None:
    done = run("--list")
    assert done.returncode == 0, done.stderr
    for word in ("python-doc", "debian", "PSF-2", "chinese-poetry", "sympy"):
        assert word in done.stdout


def test_folders_become_sources(tmp_path: Path) -> None:
    for name in ("one/texts", "two/texts"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text(f"Text of {name}.\n")
    done = run(
        "--output", tmp_path / "out", "--folders", tmp_path / "one/texts", tmp_path / "two/texts"
    )
    assert done.returncode == 0, done.stderr
    block = yaml.safe_load(done.stdout[done.stdout.index("sources:") :])
    paths = [Path(source["path"]) for source in block["sources"]]
    assert [path.name for path in paths] == ["texts.jsonl.zst", "texts-2.jsonl.zst"]
    assert all(path.is_file() for path in paths)
    listed = json.loads((tmp_path / "out" / "mixture.json").read_text())
    assert [each["documents"] for each in listed] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --output DIR with --packages or --folders"),
        (["--output", "out", "--packages", "sqlite-doc"], "did you mean sqlite3-doc?"),
        (["--output", "out", "--folders", "/no/such/path"], "path /no/such/path does not exist"),
    ],
)
def test_mistakes_end_with_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*[str(tmp_path / a) if a == "out" else a for a in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_folder_named_like_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sanguo").mkdir()
    (tmp_path / "sanguo" / "a.txt").write_text("x")
    done = run(
        "--output", tmp_path / "out", "--packages", "sanguo", "--folders", tmp_path / "sanguo"
    )
    assert done.returncode == 2
    assert "sanguo is also the name of a package" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs Debian's apt-get")
def test_a_real_package(tmp_path: Path) -> None:
    done = run("--output", tmp_path / "out", "--packages", "fortunes-zh")
    assert done.returncode == 0, done.stderr
    assert "GPL-3+" in done.stdout
    (made,) = json.loads((tmp_path / "out" / "mixture.json").read_text())
    assert made["documents"] > 1000
    assert made["bytes"] > 500_000
    again = run("--output", tmp_path / "out", "--packages", "fortunes-zh")
    assert "already there" in again.stdout + again.stderr


@pytest.mark.parametrize("output", ["texts", "texts/out", "texts/deep/out"])
def test_output_inside_a_folder_that_is_read_is_refused(tmp_path: Path, output: str) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    done = run("--output", tmp_path / output, "--folders", tmp_path / "texts")
    assert done.returncode == 2
    assert "which is read" in done.stderr
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["a.txt"]
