"""Documents of every kind of file, written with independent libraries, and every kind of damage."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.documents import MAX_FILE_DOCUMENT_BYTES
from paddle_ernie.data.readers import UnreadableError, read_file
from paddle_ernie.data.sources import list_sources
from paddle_ernie.utils.errors import DataError

ROWS = ["one\nline", "", None, "三", "\ud800!"]
READ_ROWS = ["one\nline", "", None, "三", "\ufffd!"]


def read(path: Path, column: str = "text") -> list[str | None]:
    """All documents of a file; checks that the reported bytes are those of the file."""
    file = list_sources([SourceConfig(path=path)])[0].files[0]
    consumed: list[int] = []
    documents = list(read_file(file, column, consumed.append))
    assert sum(consumed) == path.stat().st_size
    return documents


def jsonl(rows: list[str | None], column: str = "text") -> bytes:
    return "\n".join(json.dumps({"id": 1, column: row}) for row in rows).encode() + b"\n\n"


@pytest.mark.parametrize("suffix", [".txt", ".md", ".rst", ".py", ".unknown"])
def test_text_is_taken_as_it_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes("Zeile\r\n\t你好 <b>x</b>\n".encode())
    assert read(path) == ["Zeile\r\n\t你好 <b>x</b>\n"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_obeyed(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes("héllo".encode(encoding))
    assert read(path) == ["héllo"]


def test_python_declares_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert read(path) == ["# -*- coding: latin-1 -*-\nname = 'é'\n"]


def test_web_page_declares_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "file.html"
    path.write_bytes('<meta charset="gb2312"><p>你好 &amp; <b>x</b></p>'.encode("gb2312"))
    assert read(path) == ["你好 & x\n"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("file.txt", b"ok then \xff", "not UTF-8: byte 0xFF at offset 8"),
        ("file.txt", b"PK\x00\x01", "binary .NUL byte at offset 2"),
        ("file.py", b"# coding: utf-8\n\xff", "not UTF-8: byte 0xFF at offset 16"),
        ("file.py", b"# coding: klingon\n\xff", "not UTF-8: byte 0xFF at offset 18"),
        ("file.py", b"# coding: ascii\n\xff", "not ascii"),
        ("file.html", b'<meta charset="klingon">\xff', "not klingon"),
    ],
)
def test_what_is_not_text_says_where(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=message):
        read(path)


def test_large_file_is_cut_into_documents(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    text = "".join(f"paragraph {n} 长\n\n" for n in range(20_000))
    path.write_text(text)
    documents = read(path)
    assert "".join(documents) == text
    assert max(len(d.encode()) for d in documents) <= MAX_FILE_DOCUMENT_BYTES
    assert all(d.endswith("\n\n") for d in documents)


def compress(path: Path, data: bytes) -> None:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zst":
        half = len(data) // 2  # two frames, as `zstd --append` and pzstd write them
        frames = [zstandard.compress(part) for part in (data[:half], data[half:])]
        path.write_bytes(b"".join(frames))
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file.jsonl{suffix}"
    compress(path, jsonl(ROWS * 1000, "body"))
    assert read(path, "body") == READ_ROWS * 1000


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    rows = READ_ROWS * 1000
    pq.write_table(pa.table({"id": range(len(rows)), "body": rows}), path, row_group_size=700)
    file = list_sources([SourceConfig(path=path)])[0].files[0]
    assert list(read_file(file, "body", lambda _: None)) == rows


def test_parquet_dictionary_column(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), path)
    file = list_sources([SourceConfig(path=path)])[0].files[0]
    assert list(read_file(file, "text", lambda _: None)) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{oops", r"file.jsonl:3: not valid JSON: .*\(line begins '\{oops'\)"),
        (b"[1]", "file.jsonl:3: expected a JSON object, found list"),
        (b'{"body": "x"}', r"file.jsonl:3: no field 'text' \(fields: body\); set the source's"),
        (b'{"text": 5}', "file.jsonl:3: field 'text' is int, expected a string"),
        (b'"\xff"', "file.jsonl:3: not valid JSON"),
        (b"[" * 100_000, "file.jsonl:3: not valid JSON: maximum recursion depth"),
        (json.dumps(dict.fromkeys(map(str, range(90)))).encode(), ", 19, and 70 more"),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        read(path)


def test_malformed_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"file.parquet: cannot be read as Parquet"):
        read(path)
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    with pytest.raises(DataError, match=r"no column 'text', expected one \(columns: body, n\)"):
        read(path)
    with pytest.raises(DataError, match="column 'n' holds int64, expected strings"):
        read(path, "n")


def test_topics_of_help_are_documents() -> None:
    listing = list_sources([SourceConfig(format="python_stdlib", glob="pydoc_data/*.py")])[0]
    topics = next(file for file in listing.files if file.kind == "pydoc")
    documents = list(read_file(topics, "text", lambda _: None))
    assert len(documents) > 50
    assert any(text.startswith('The "assert" statement') for text in documents)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compression_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file.txt{suffix}"
    compress(path, random.Random(0).randbytes(5000).hex().encode())
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:20], b"not compressed at all", whole + b"garbage behind"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged or cut compressed file"):
            read(path)


def test_parquet_with_broken_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    buffers = [pa.py_buffer(part) for part in (np.array([0, 2], "i4").tobytes(), b"\xff\xfe")]
    pq.write_table(pa.table({"text": pa.StringArray.from_buffers(1, *buffers)}), path)
    with pytest.raises(DataError, match=r"file.parquet: cannot be read as Parquet: 'utf-8' codec"):
        read(path)


def test_parquet_column_given_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), path)
    with pytest.raises(DataError, match="2 columns 'text', expected one"):
        read(path)


def test_parquet_string_views(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", "b"], pa.string_view())}), path)
    assert read(path) == ["a", "b"]
