"""Every reading of the catalogue on a small file in its format."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from paddle_ernie.data.catalog import Package, Reading
from paddle_ernie.data.package_text import READERS, file_documents, package_files
from paddle_ernie.data.readers import UnreadableError

WORDNET = """  1 This software and database is being provided to you | by Princeton
00005930 03 n 01 dwarf 0 001 @ 00004475 n 0000 | a plant or animal that is small  
00007846 03 n 02 human_being 0 person 1 001 @ 00004475 n 0000 | a human  
"""
POEMS = [
    {"title": "靜夜思", "author": "李白", "paragraphs": ["床前明月光", "疑是地上霜"], "id": "x"},
    {"content": [{"chapter": "大學", "paragraphs": ["大學之道"]}], "abstract": None},
    {"name": "author only", "desc": "none"},
]

CASES: dict[Reading, tuple[str, list[str]]] = {
    "text": ("a\n\nb", ["a\n\nb"]),
    "html": ("<p>a</p>", ["a\n"]),
    "roff": (".SH A\nb\n", ["A\n\nb\n"]),
    "fortunes": ("\x1b[32mone\x1b[m\n%\ntwo %\n%\n", ["one\n", "two %\n"]),
    "tagged": (
        "The/at ``/`` no/at way/nn ''/'' ,/, ok/x ./.\n\n\n1\\/2/cd ok/x\n",
        ['The "no way", ok.\n1\\/2 ok\n'],
    ),
    "tagged-zh": ("迈向/v  充满/v  希望/n\n１９９８/t 年/q\n", ["迈向充满希望\n１９９８年\n"]),
    "lines": ("好\n\n 坏 \n", ["好\n", "坏\n"]),
    "wordnet": (
        WORDNET,
        ["dwarf: a plant or animal that is small\n\nhuman being, person: a human\n"],
    ),
    "poems": (json.dumps(POEMS), ["靜夜思 李白\n床前明月光\n疑是地上霜\n", "大學\n大學之道\n"]),
    "strings": (json.dumps(["一", {"a": "二", "b": ["三", 4]}, "四"]), ["一", "二", "三", "四"]),
}


def package(reading: Reading = "text", **changes: object) -> Package:
    plain = Package("x", "npm", ("x",), "en", "test", "MIT", 1, 1, ("**/*",), reading=reading)
    return dataclasses.replace(plain, **changes)


def test_every_reading_has_a_case() -> None:
    assert set(CASES) == set(READERS)


@pytest.mark.parametrize("reading", CASES)
@pytest.mark.parametrize("compressed", [False, True])
def test_reading(tmp_path: Path, reading: Reading, compressed: bool) -> None:
    source, expected = CASES[reading]
    path = tmp_path / ("file.gz" if compressed else "file")
    path.write_bytes(gzip.compress(source.encode()) if compressed else source.encode())
    assert list(file_documents(path, package(reading))) == expected


def test_stray_bytes_are_replaced_only_where_the_catalogue_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\x92b")
    with pytest.raises(UnreadableError):
        list(file_documents(tmp_path / "file", package()))
    assert list(file_documents(tmp_path / "file", package(stray_bytes=True))) == ["a\ufffdb"]


def test_files_are_chosen_by_patterns_and_once(tmp_path: Path) -> None:
    for name in ("a/x.txt", "a/y.txt", "b/z.txt", "b/old/w.txt", "c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "again.txt").symlink_to(tmp_path / "a" / "x.txt")
    chosen = package(include=("**/*.txt", "a/*", "link/*"), exclude=("b/old", "a/y.*"))
    names = [p.relative_to(tmp_path).as_posix() for p in package_files(tmp_path, chosen)]
    assert names == ["a/x.txt", "b/z.txt"]


def test_leaving_out_a_link_keeps_the_file_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "poems").write_text("x")
    (tmp_path / "poems.u8").symlink_to("poems")
    chosen = package(include=("*",), exclude=("*.u8",))
    assert [path.name for path in package_files(tmp_path, chosen)] == ["poems"]
