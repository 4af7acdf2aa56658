"""Megatron's files, written here byte by byte from the format's description."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.megatron import read_megatron
from paddle_ernie.utils.errors import DataError

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=3), max_size=6
)


def write_megatron(prefix: Path, documents: list[list[list[int]]], dtype: str = "<i4") -> None:
    """Documents of sequences of ids."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = [len(sequence) for sequence in sequences]
    width = np.dtype(dtype).itemsize
    pointers = [width * sum(lengths[:i]) for i in range(len(lengths))]
    marks = [0, *np.cumsum([len(document) for document in documents]).tolist()]
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype])
    index += struct.pack("<QQ", len(sequences), len(marks))
    index += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(
        f"<{len(lengths)}q", *pointers
    )
    index += struct.pack(f"<{len(marks)}q", *marks)
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(b"".join(np.array(s, dtype).tobytes() for s in sequences))


@given(documents=DOCUMENTS, dtype=st.sampled_from(sorted(CODES)))
def test_documents_come_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list, dtype: str
) -> None:
    prefix = tmp_path_factory.mktemp("megatron") / "data.v1"
    write_megatron(prefix, documents, dtype)
    read = list(read_megatron(prefix, vocab_size=100))
    assert [d.tolist() for d in read] == [[i for s in d for i in s] for d in documents]
    assert all(d.dtype == np.dtype("<u4") for d in read)


def test_prefix_may_carry_a_suffix(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[[1, 2]]])
    for name in ("x", "x.bin", "x.idx"):
        assert [d.tolist() for d in read_megatron(tmp_path / name, 10)] == [[1, 2]]


def test_missing_half_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    with pytest.raises(DataError, match=r"x\.idx: no such file"):
        list(read_megatron(tmp_path / "x", 10))


@pytest.mark.parametrize(("wrong", "name"), [(10, "10"), (-1, "-1")])
def test_ids_outside_the_vocabulary(tmp_path: Path, wrong: int, name: str) -> None:
    write_megatron(tmp_path / "x", [[[1]], [[2, wrong]]])
    with pytest.raises(DataError, match=f"document 1 holds token id {name}, but .* 0 to 9"):
        list(read_megatron(tmp_path / "x", 10))


def damage(index: bytearray, tokens: bytearray, how: str) -> None:
    if how == "magic":
        index[0:4] = b"ABCD"
    elif how == "version":
        index[9] = 2
    elif how == "float":
        index[17] = 7
    elif how == "short index":
        del index[-4:]
    elif how == "short tokens":
        del tokens[-4:]
    elif how == "lost document":
        index[-8:] = struct.pack("<q", 1)
    elif how == "odd offset":
        index[42:44] = b"\x01\x00"
    elif how == "marks":
        index[-8:] = struct.pack("<q", 99)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("magic", r"begins with b'ABCD"),
        ("version", "version 2 with dtype code 4"),
        ("float", "version 1 with dtype code 7"),
        ("short index", "its header asks for"),
        ("short tokens", "points to token 5, but x.bin holds 4"),
        ("marks", "do not ascend from 0 to 2"),
        ("lost document", "do not ascend from 0 to 2"),
        ("odd offset", "no multiple of the 4 bytes of a token"),
    ],
)
def test_damage_is_explained(tmp_path: Path, how: str, message: str) -> None:
    write_megatron(tmp_path / "x", [[[1, 2, 3]], [[4, 5]]])
    index, tokens = (bytearray((tmp_path / f"x.{s}").read_bytes()) for s in ("idx", "bin"))
    damage(index, tokens, how)
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(tokens)
    with pytest.raises(DataError, match=message):
        list(read_megatron(tmp_path / "x", 10))
