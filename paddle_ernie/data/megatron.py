"""Megatron-LM's pair of files: tokens in .bin, where each document lies in .idx.

    .idx   "MMIDIDX\\0\\0" | u64 version = 1 | u8 dtype code | u64 sequences | u64 document marks
           | i32 [sequences] lengths in tokens | i64 [sequences] byte offsets in .bin
           | i64 [marks] index of the first sequence of each document, and the number of sequences

Called by `spool` for sources with `format: megatron`. The ids are taken as they are, so they must
be those of the run's tokenizer.
"""

import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from paddle_ernie.utils.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Codes 6 and 7 are floating point and hold no tokens."""


def megatron_files(prefix: Path) -> tuple[Path, Path]:
    """The .bin and the .idx of a prefix, which may itself be given with either suffix."""
    if prefix.suffix in (".bin", ".idx"):
        prefix = prefix.with_suffix("")
    files = (Path(f"{prefix}.bin"), Path(f"{prefix}.idx"))
    for file in files:
        if not os.path.isfile(file):
            raise DataError(f"{file}: no such file; a megatron source needs {prefix}.bin and .idx")
    return files


def read_megatron(prefix: Path, vocab_size: int) -> Iterator[np.ndarray]:
    """Each document's token ids as uint32, checked to lie within the vocabulary."""
    bin_path, idx_path = megatron_files(prefix)
    dtype, lengths, pointers, marks = _read_index(idx_path)
    tokens = _map(bin_path, dtype)
    starts = pointers // dtype.itemsize
    stops = starts + lengths
    if len(starts) and (starts.min() < 0 or stops.max() > len(tokens)):
        raise DataError(
            f"{idx_path}: points to token {stops.max()}, but {bin_path.name} holds {len(tokens)} "
            f"tokens of {dtype.itemsize} bytes; the two files do not belong together or were cut"
        )
    if len(starts) and (lengths.min() < 0 or (pointers % dtype.itemsize).any()):
        raise DataError(
            f"{idx_path}: a negative length or an offset that is no multiple of the "
            f"{dtype.itemsize} bytes of a token; it is damaged"
        )
    for number, (first, last) in enumerate(pairwise(marks)):
        pieces = [tokens[starts[i] : stops[i]] for i in range(first, last)]
        document = np.concatenate(pieces) if pieces else tokens[:0]
        if len(document) and (document.min() < 0 or document.max() >= vocab_size):
            wrong = document.min() if document.min() < 0 else document.max()
            raise DataError(
                f"{bin_path}: document {number} holds token id {wrong}, but the tokenizer's ids "
                f"are 0 to {vocab_size - 1}; set data.tokenizer.path to the one it was made with"
            )
        yield document.astype("<u4")


def _read_index(path: Path) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise DataError(
            f"{path}: not a Megatron index: begins with {data[: len(MAGIC)]!r}, expected {MAGIC!r}"
        )
    _, version, code, num_sequences, num_marks = HEADER.unpack_from(data)
    if version != 1 or code not in DTYPES:
        raise DataError(
            f"{path}: version {version} with dtype code {code}; version 1 with an integer code "
            f"({', '.join(map(str, DTYPES))}) is read"
        )
    need = HEADER.size + 12 * num_sequences + 8 * num_marks
    if len(data) < need:
        raise DataError(
            f"{path}: {len(data)} bytes, but its header asks for {need}; it was cut short"
        )
    at = HEADER.size
    lengths = np.frombuffer(data, "<i4", num_sequences, at).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", num_sequences, at + 4 * num_sequences)
    marks = np.frombuffer(data, "<i8", num_marks, at + 12 * num_sequences)
    if num_marks and (marks[0] != 0 or marks[-1] != num_sequences or (np.diff(marks) < 0).any()):
        raise DataError(f"{path}: its document marks do not ascend from 0 to {num_sequences}")
    return np.dtype(DTYPES[code]), lengths, pointers, marks


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    size = path.stat().st_size // dtype.itemsize
    if not size:
        return np.zeros(0, dtype)
    try:
        return np.memmap(path, dtype, mode="r", shape=(size,))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
