"""The documents inside a file, one reader per kind. Called by `spool`.

Each reader yields texts (None for a null row) and reports the bytes it has consumed. A file that is
not text raises UnreadableError, which the caller turns into an error for a file the user named and
into a line of the summary for a file met in a folder; a malformed file is always a DataError.
"""

import importlib
import io
import json
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paddle_ernie.data.compressed import open_binary
from paddle_ernie.data.documents import cut
from paddle_ernie.data.html_text import declared_charset, html_to_text
from paddle_ernie.data.sources import FileKind, SourceFile
from paddle_ernie.data.tokenizer import without_surrogates
from paddle_ernie.utils.errors import DataError

Consumed = Callable[[int], None]

BINARY_SCAN_BYTES = 8192
"""A NUL byte this early marks a binary file (git's rule)."""

JSONL_REPORT_LINES = 1000
PARQUET_BATCH_ROWS = 1000
SHOWN_NAMES = 20
"""Fields or columns that an error lists."""

BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


class UnreadableError(Exception):
    """The file is not text in an encoding that can be known. The message says why and where."""


def read_file(file: SourceFile, column: str, consumed: Consumed) -> Iterator[str | None]:
    """All documents of one file."""
    if file.kind == "jsonl":
        return _read_jsonl(file.path, column, consumed)
    if file.kind == "parquet":
        return _read_parquet(file, column, consumed)
    if file.kind == "pydoc":
        return _read_pydoc(file, consumed)
    return _read_whole(file, consumed)


def _read_whole(file: SourceFile, consumed: Consumed) -> Iterator[str]:
    with open_binary(file.path) as (stream, _):
        data = stream.read()
    text = decode(data, file.kind)
    yield from cut(html_to_text(text) if file.kind == "html" else text)
    consumed(file.size)


def decode(data: bytes, kind: FileKind) -> str:
    """Text of a file's bytes: byte order mark, else UTF-8, else what the file itself declares."""
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_as(data, encoding)
    if (position := data.find(b"\0", 0, BINARY_SCAN_BYTES)) >= 0:
        raise UnreadableError(f"binary (NUL byte at offset {position})")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        declared = _declared(data, kind)
        if declared is None or declared.lower().replace("_", "-") in ("utf-8", "utf8"):
            wrong = data[error.start]
            raise UnreadableError(
                f"not UTF-8: byte 0x{wrong:02X} at offset {error.start}"
            ) from error
    return _decode_as(data, declared)


def _decode_as(data: bytes, encoding: str) -> str:
    try:
        return without_surrogates(data.decode(encoding))
    except (UnicodeDecodeError, LookupError) as error:
        raise UnreadableError(f"not {encoding}: {error}") from error


def _declared(data: bytes, kind: FileKind) -> str | None:
    """The encoding a Python file (PEP 263) or a web page names."""
    if kind == "html":
        return declared_charset(data)
    if kind != "python":
        return None
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return None


def _read_jsonl(path: Path, column: str, consumed: Consumed) -> Iterator[str | None]:
    with open_binary(path) as (stream, raw):
        reported = 0
        for number, line in enumerate(stream, 1):
            if number % JSONL_REPORT_LINES == 0:
                consumed(raw.tell() - reported)
                reported = raw.tell()
            if line.strip():
                yield _json_text(line, column, f"{path}:{number}")
        consumed(raw.tell() - reported)


def _json_text(line: bytes, column: str, where: str) -> str | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # too deeply nested
        shown = line.strip()[:60].decode("utf-8", "replace")
        raise DataError(f"{where}: not valid JSON: {error} (line begins {shown!r})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    if column not in row:
        raise DataError(
            f"{where}: no field {column!r} (fields: {_shown(list(row)) or 'none'}); "
            "set the source's `column`"
        )
    value: Any = row[column]
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: field {column!r} is {type(value).__name__}, expected a string")
    return None if value is None else without_surrogates(value)


def _shown(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f", and {more} more" if more > 0 else "")


def _read_parquet(file: SourceFile, column: str, consumed: Consumed) -> Iterator[str | None]:
    try:
        with pq.ParquetFile(file.path) as table:
            _check_column(table.schema_arrow, column, file.path)
            rows = max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[column]):
                yield from batch.column(0).to_pylist()
                consumed(file.size * batch.num_rows // rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file.path}: cannot be read as Parquet: {error}") from error


def _check_column(schema: pa.Schema, column: str, path: Path) -> None:
    if (times := schema.names.count(column)) != 1:
        raise DataError(
            f"{path}: {f'{times} columns' if times else 'no column'} {column!r}, expected one "
            f"(columns: {_shown(schema.names)}); set the source's `column`"
        )
    kind = schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind not in (pa.string(), pa.large_string(), pa.string_view()):
        raise DataError(f"{path}: column {column!r} holds {kind}, expected strings")


def _read_pydoc(file: SourceFile, consumed: Consumed) -> Iterator[str]:
    """The topics of `help()`: chapters of the language reference as plain text."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    yield from (topics[name] for name in sorted(topics))
    consumed(file.size)
