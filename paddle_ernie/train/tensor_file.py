"""Write arrays as a safetensors file straight from their memory. Used by checkpoints.

    u64 length of header | header: JSON name -> dtype, shape, [begin, end) | array | array | ...

`safetensors.numpy.save_file` makes a bytes object of each tensor and one of the whole file before
it writes; a checkpoint is most of a process's memory, so here arrays go to the file as they are.
Read the result with any safetensors library.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import numpy as np

ALIGNMENT = 8  # the format wants the first array at a multiple of this
DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8"}


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write and sync a new file, and return the SHA-256 of its bytes.

    Arrays must be C-contiguous. The hash is computed on a second thread while the disk works.
    """
    pieces = [_header(arrays), *(_bytes_of(name, array) for name, array in arrays.items())]
    with ThreadPoolExecutor(max_workers=1) as thread:
        digest = thread.submit(_digest, pieces)
        with path.open("xb", buffering=0) as stream:
            for piece in pieces:
                _write_all(stream, piece)
            os.fsync(stream.fileno())
        return digest.result()


def tensors_nbytes(arrays: Mapping[str, np.ndarray]) -> int:
    """Size of the file."""
    return len(_header(arrays)) + sum(array.nbytes for array in arrays.values())


def _header(arrays: Mapping[str, np.ndarray]) -> bytes:
    entries, offset = {}, 0
    for name, array in arrays.items():
        span = [offset, offset + array.nbytes]
        entries[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": span,
        }
        offset = span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(name: str, array: np.ndarray) -> memoryview:
    assert array.flags.c_contiguous, f"{name} is not contiguous"
    return memoryview(array.reshape(-1).view(np.uint8))


def _digest(pieces: list[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _write_all(stream: FileIO, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:  # a raw write may be short: 2 GB at a time, or a nearly full disk
        view = view[stream.write(view) :]
