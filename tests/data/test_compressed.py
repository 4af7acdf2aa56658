"""Streams over plain and compressed files."""

import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.compressed import open_binary
from paddle_ernie.utils.errors import DataError


@given(frames=st.lists(st.binary(max_size=300), max_size=4))
def test_zst_frames_are_joined(
    tmp_path_factory: pytest.TempPathFactory, frames: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("zst") / "file.zst"
    path.write_bytes(b"".join(zstandard.compress(frame) for frame in frames))
    with open_binary(path) as (stream, _):
        assert stream.read() == b"".join(frames)


def test_dictzip_is_gzip(tmp_path: Path) -> None:
    path = tmp_path / "words.dict.dz"
    path.write_bytes(gzip.compress(b"a word"))
    with open_binary(path) as (stream, raw):
        assert stream.read() == b"a word"
        assert raw.tell() == path.stat().st_size


def test_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"gone.txt: cannot be read: No such file"),
        open_binary(tmp_path / "gone.txt"),
    ):
        pass
