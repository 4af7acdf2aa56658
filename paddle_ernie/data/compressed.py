"""Plain, .gz and .zst files behind one binary stream; a damaged or cut file is a DataError.

Called by `readers`. The zstandard package's own stream ends quietly where a cut file ends, so
frames are fed here by hand and an unfinished one is an error.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

from paddle_ernie.utils.errors import DataError

READ_BYTES = 1 << 18
COMPRESSED_SUFFIXES = (".gz", ".dz", ".zst")
"""dictzip's .dz is gzip with an index."""


@contextmanager
def open_binary(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The decompressed stream, and the raw file whose position says how far reading got."""
    try:
        with path.open("rb") as raw:
            yield _decompressed(path, raw), raw
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise DataError(f"{path}: damaged or cut compressed file: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    if path.suffix in (".gz", ".dz"):
        return gzip.open(raw)  # type: ignore[return-value]
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdStream(raw), READ_BYTES)
    return raw


class _ZstdStream(io.RawIOBase):
    """Decompresses frame after frame and insists that the last one is whole."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._started = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            if self._started and self._frame.eof:
                data = self._frame.unused_data or self._raw.read(READ_BYTES)
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._started = False
            else:
                data = self._raw.read(READ_BYTES)
            if not data:
                if self._started:
                    raise EOFError("the last zstd frame is incomplete")
                return 0
            self._started = True
            self._ready = self._frame.decompress(data)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
