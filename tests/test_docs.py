"""What the pages say is so: the layout, the rows of imports, names in the walks, commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddle_ernie.config.loader import load_config
from tests.test_import_direction import PADDLE_FREE, ROWS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "paddle_ernie"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BESIDE = {"runs", "bench", "corpus", "shared", "venv"}  # what runs and users put beside the tree
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "configs").rglob("*.yaml")),
    *sorted((ROOT / "tools").glob("*.py")),
]


def block(heading: str) -> list[str]:
    """Lines of the first code block below a heading of the architecture page."""
    below = ARCHITECTURE.split(f"\n## {heading}\n", 1)[1]
    return below.split("```\n", 2)[1].splitlines()


def layout() -> Iterator[tuple[str, str]]:
    """(path, rest of the line) of every entry; lines that go on are joined to theirs."""
    folder, path, words = "", "", ""
    for line in block("Layout"):
        if len(line) - len(line.lstrip()) > 2:
            words += f" {line.strip()}"
            continue
        if path:
            yield path, words
        name, _, words = line.strip().partition(" ")
        path = folder + name if line.startswith("  ") else name
        if not line.startswith(" "):
            folder = name
    yield path, words


def files_named(words: str) -> set[str]:
    return set(re.findall(r"[\w-]+(?:\.(?:py|md|yaml|txt)\b|/)", words))


def entries(folder: Path) -> set[str]:
    """Names in a folder, those of folders with a slash; hidden and compiled ones left out."""
    return {
        f"{path.name}/" if path.is_dir() else path.name
        for path in folder.iterdir()
        if not path.name.startswith((".", "__")) and path.suffix != ".egg-info"
    }


def test_the_layout_lists_every_folder_and_module() -> None:
    listed = [path for path, _ in layout()]
    inside = [path.removeprefix("paddle_ernie/") for path in listed if "/" in path.rstrip("/")]
    assert sorted(inside) == sorted(entries(PACKAGE))
    outside = {path for path in listed if "/" not in path.rstrip("/")}
    folders = {name for name in entries(ROOT) if name.endswith("/") and name[:-1] not in BESIDE}
    assert outside == folders


@pytest.mark.parametrize("folder", ["configs", "tools", "deploy", "docs"])
def test_the_layout_lists_what_is_in_a_folder(folder: str) -> None:
    words = dict(layout())[f"{folder}/"]
    assert files_named(words) == entries(ROOT / folder)


def test_import_rows_are_those_that_are_tested() -> None:
    shown = [set(re.split(r" \| |, ", line)) for line in reversed(block("Import direction"))]
    there = {path.stem for path in PACKAGE.iterdir()} | {"tools"}
    tested = [names for row in ROWS if (names := set(row) & there)]
    assert shown == tested


def test_packages_that_are_said_to_be_free_of_paddle() -> None:
    said = {
        path.split("/")[1].removesuffix(".py") for path, words in layout() if "no Paddle)" in words
    }
    assert said == {name for name in PADDLE_FREE if list(PACKAGE.glob(f"{name}*"))}


def test_names_in_the_walks_exist() -> None:
    lines = "\n".join(block("The walk of a batch") + block("The walk of a pipeline"))
    packages = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    found = re.findall(rf"(?<![\w/])(?:{packages})(?:\.\w+)+", lines)
    assert len(found) >= 9
    for name in found:
        package, module, *attributes = name.split(".")
        path = PACKAGE / package / f"{module}.py"
        assert path.is_file(), name
        source = path.read_text(encoding="utf-8")
        for attribute in attributes:
            assert re.search(rf"(?:class|def) {attribute}\b", source), name


def test_what_is_not_there_yet_is_not() -> None:
    for name in re.findall(r"`([\w/]+)`", ARCHITECTURE.split("## Not there yet\n")[1]):
        assert not list(PACKAGE.glob(f"{name.rstrip('/')}*")), f"{name} is there: move it up"


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every call of tools/train.py, without comments behind it."""
    for page in TEXTS:
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.search(r"tools/train\.py (-c [^`#]*)", line):
                yield page.name, found[1].strip()


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_commands_name_configurations_that_load(page: str, command: str) -> None:
    words = iter(shlex.split(command))
    path, overrides = None, []
    for word in words:
        if word == "-c":
            path = next(words)
        elif word == "-o":
            overrides.append(next(words))
    if path is not None and path.endswith(".yaml") and "x.yaml" not in path:
        load_config(ROOT / path, overrides)
