"""Which files a source takes, and how each is read."""

import os
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.sources import list_sources
from paddle_ernie.utils.errors import DataError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = (
        "a.txt b.md c.rst d.py e.html f.jsonl g.jsonl.gz h.jsonl.zst i.parquet j.txt.gz k.c "
        "sub/l.txt sub/deep/m.TXT skip/n.txt .git/o.txt p.bin"
    )
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def listed(**settings: object) -> list[tuple[str, str]]:
    listing = list_sources([SourceConfig(**settings)])[0]
    return [(f.path.relative_to(listing.root).as_posix(), f.kind) for f in listing.files]


def test_known_suffixes_of_a_folder(tree: Path) -> None:
    assert listed(path=tree) == [
        ("a.txt", "text"),
        ("b.md", "text"),
        ("c.rst", "text"),
        ("d.py", "python"),
        ("e.html", "html"),
        ("f.jsonl", "jsonl"),
        ("g.jsonl.gz", "jsonl"),
        ("h.jsonl.zst", "jsonl"),
        ("i.parquet", "parquet"),
        ("j.txt.gz", "text"),
        ("skip/n.txt", "text"),
        ("sub/deep/m.TXT", "text"),
        ("sub/l.txt", "text"),
    ]


def test_globs_and_excludes(tree: Path) -> None:
    assert listed(path=tree, glob="**/*.txt", exclude=["skip", ".git"]) == [
        ("a.txt", "text"),
        ("sub/l.txt", "text"),
    ]
    assert listed(path=tree, glob=["*.c", "sub/*.txt"]) == [("k.c", "text"), ("sub/l.txt", "text")]
    assert ("sub/deep/m.TXT", "text") not in listed(path=tree, exclude=["**/deep"])
    assert ("a.txt", "text") not in listed(path=tree, exclude=["*.txt"])


def test_format_overrides_the_suffix(tree: Path) -> None:
    assert listed(path=tree, glob="*.jsonl", format="text") == [("f.jsonl", "text")]
    assert listed(path=tree, glob="*.txt", format="html") == [("a.txt", "html")]


def test_format_of_a_folder_takes_its_own_suffixes(tree: Path) -> None:
    lines = [(f"{name}", "jsonl") for name in ("f.jsonl", "g.jsonl.gz", "h.jsonl.zst")]
    assert listed(path=tree, format="jsonl") == lines
    assert listed(path=tree, format="parquet") == [("i.parquet", "parquet")]
    assert ("d.py", "python") in listed(path=tree, format="text")
    assert ("f.jsonl", "text") not in listed(path=tree, format="text")
    with pytest.raises(DataError, match=re.escape("matches (suffixes .html .htm, also")):
        listed(path=tree / "sub", format="html")


def test_single_file_is_known_as_named(tree: Path) -> None:
    one, many = list_sources([SourceConfig(path=tree / "k.c"), SourceConfig(path=tree / "sub")])
    assert one.named_file
    assert [file.kind for file in one.files] == ["text"]
    assert not many.named_file
    assert one.num_bytes == len("k.c")


def test_names_are_made_distinct(tree: Path) -> None:
    sources = [SourceConfig(path=tree / "sub"), SourceConfig(path=tree / "sub", name="x")]
    names = [listing.name for listing in list_sources([*sources, sources[0], sources[0]])]
    assert names == ["sub", "x", "sub-2", "sub-3"]
    (tree / "sub-2").mkdir()
    (tree / "sub-2" / "a.txt").touch()
    sources = [SourceConfig(path=tree / name) for name in ("sub-2", "sub", "sub")]
    names = [listing.name for listing in list_sources(sources)]
    assert names == ["sub-2", "sub", "sub-3"]


def test_relative_folders_have_names(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "sub" / "deep")
    sources = [SourceConfig(path=Path(".")), SourceConfig(path=Path(".."))]
    assert [listing.name for listing in list_sources(sources)] == ["deep", "sub"]


def test_python_library_is_itself(tmp_path: Path) -> None:
    listing = list_sources([SourceConfig(format="python_stdlib")])[0]
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = {file.path.relative_to(root).as_posix(): file.kind for file in listing.files}
    assert paths["os.py"] == paths["json/decoder.py"] == "python"
    assert paths["pydoc_data/topics.py"] == "pydoc"
    assert not [p for p in paths if "site-packages" in p or "__pycache__" in p or ".py" not in p]
    assert list(paths) == sorted(paths)
    without_tests = list_sources([SourceConfig(format="python_stdlib", exclude=["**/test*"])])[0]
    assert 0 < len(without_tests.files) < len(listing.files)


def test_missing_path_names_the_working_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="source 'nowhere': path nowhere does not exist") as caught:
        list_sources([SourceConfig(path=Path("nowhere"))])
    assert str(Path.cwd()) in str(caught.value)


def test_folder_without_a_match_says_what_was_wanted(tree: Path) -> None:
    with pytest.raises(DataError, match=re.escape("matches (**/*.tex)")):
        list_sources([SourceConfig(path=tree, glob="**/*.tex")])
    (tree / "empty").mkdir()
    with pytest.raises(DataError, match=r"suffixes .txt .md .rst"):
        list_sources([SourceConfig(path=tree / "empty")])


def test_absolute_pattern_is_explained(tree: Path) -> None:
    with pytest.raises(DataError, match="patterns are relative to"):
        list_sources([SourceConfig(path=tree, glob="/etc/*")])


def test_patterns_for_a_file_are_refused(tree: Path) -> None:
    for patterns in ({"glob": "*.py"}, {"exclude": ["x"]}):
        with pytest.raises(DataError, match="is a file, so `glob` and `exclude`"):
            list_sources([SourceConfig(path=tree / "a.txt", **patterns)])


def test_what_is_neither_file_nor_folder_is_refused() -> None:
    with pytest.raises(DataError, match="/dev/null is neither a file nor a folder"):
        list_sources([SourceConfig(path=Path("/dev/null"))])


def test_name_the_system_refuses_is_explained() -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        list_sources([SourceConfig(path=Path("x" * 300))])


@pytest.fixture
def open_tree() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "sub").mkdir()
        (root / "a.txt").touch()
        (root / "sub" / "b.txt").touch()
        yield root


@pytest.mark.parametrize("glob", [None, "**/*.txt"])
@pytest.mark.parametrize(("closed", "mode"), [("sub", 0), ("sub", 0o444), (".", 0)])
def test_closed_folder_is_an_error(
    open_tree: Path, glob: str | None, closed: str, mode: int
) -> None:
    (open_tree / closed).chmod(mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(DataError, match="cannot be read: Permission denied"):
            list_sources([SourceConfig(path=open_tree, glob=glob)])
    finally:
        if is_root:
            os.seteuid(0)
        (open_tree / closed).chmod(0o755)
