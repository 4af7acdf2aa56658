"""Sharded safetensors as public checkpoints have them, in every type they use. No Paddle.

    model-00001-of-00002.safetensors ...       u64 length | JSON header | tensors
    model.safetensors.index.json               tensor -> file

safetensors' numpy interface knows neither bf16 nor FP8, and writes a file from memory all at once.
Here reading maps files, so that only the tensors that are used are read, and writing takes tensors
one by one. bf16 is uint16 in numpy, E4M3 is uint8. Used by export, its check, and import.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from paddle_ernie.utils.errors import CheckpointError, InputError
from paddle_ernie.utils.files import write_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
ALIGNMENT = 8  # where the first tensor of a file must begin
MAX_HEADER_BYTES = 100_000_000  # as the safetensors library has it

FP32, FP16, BF16, E4M3 = "F32", "F16", "BF16", "F8_E4M3"
NUMPY_TYPES = {
    FP32: np.dtype("<f4"),
    FP16: np.dtype("<f2"),
    BF16: np.dtype("<u2"),
    E4M3: np.dtype("u1"),
}


@dataclass(frozen=True)
class Spec:
    """What a file's header says of a tensor."""

    name: str
    dtype: str
    """A key of NUMPY_TYPES, in files of others any of safetensors' types."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * NUMPY_TYPES[self.dtype].itemsize


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits, uint16, of fp32 values rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    wrong = np.isnan(values)
    if wrong.any():
        rounded[wrong] = (bits[wrong] >> 16).astype(np.uint16) | 0x40  # quiet
    return rounded


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The fp32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def plan_shards(specs: Sequence[Spec], max_bytes: int) -> list[list[Spec]]:
    """Consecutive tensors of at most `max_bytes` a file; a larger tensor has one of its own."""
    shards: list[list[Spec]] = []
    filled = max_bytes + 1
    for spec in specs:
        if filled + spec.nbytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.nbytes
    return shards


def write_sharded(
    folder: Path,
    specs: Sequence[Spec],
    tensors: Iterable[tuple[Spec, np.ndarray]],
    max_bytes: int,
    framework: str,
) -> None:
    """Write `tensors`, which come in the order of `specs`, and the index.

    `framework` is what other readers look for in a file's metadata: "pt" or "np".
    """
    stream, places = iter(tensors), {}
    shards = plan_shards(specs, max_bytes)
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        places |= {spec.name: file for spec in shard}
        with (folder / file).open("xb", buffering=0) as target:
            _write_all(target, _header(shard, framework))
            for expected in shard:
                spec, array = next(stream)
                assert spec == expected, f"{spec} where {expected} was announced"
                assert array.shape == spec.shape and array.dtype == NUMPY_TYPES[spec.dtype], spec
                _write_all(target, memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))
    assert next(stream, None) is None, "more tensors than announced"
    total = sum(spec.nbytes for spec in specs)
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places})


class TensorFiles(Mapping[str, np.ndarray]):
    """Tensors of a folder, or of one file, mapped into memory: name -> array as it is stored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: dict[str, Spec] = {}
        self._places: dict[str, tuple[np.memmap, int]] = {}
        for file, listed in _files(path).items():
            found = self._open(file)
            if listed is not None and (missing := sorted(listed - found)):
                raise CheckpointError(
                    f"{file}: {INDEX_FILE} places these tensors here, but they are not:\n  "
                    + "\n  ".join(missing)
                )

    def __getitem__(self, name: str) -> np.ndarray:
        spec = self.specs[name]
        if spec.dtype not in NUMPY_TYPES:
            raise InputError(
                f"{self.path}: {name} is stored as {spec.dtype}; expected one of "
                f"{', '.join(NUMPY_TYPES)}"
            )
        data, start = self._places[name]
        stored = data[start : start + spec.nbytes]
        return stored.view(NUMPY_TYPES[spec.dtype]).reshape(spec.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def values_of(self, name: str) -> np.ndarray:
        """As fp32; not for E4M3, whose values need scales."""
        stored, dtype = self[name], self.specs[name].dtype
        assert dtype != E4M3, name
        return from_bf16(stored) if dtype == BF16 else np.asarray(stored, np.float32)

    def _open(self, file: Path) -> set[str]:
        size = file.stat().st_size
        if size < ALIGNMENT:
            raise CheckpointError(f"{file}: {size} bytes; expected a safetensors file")
        data = np.memmap(file, np.uint8, "r")
        begin = ALIGNMENT + int.from_bytes(data[:ALIGNMENT].tobytes(), "little")
        if begin > min(size, MAX_HEADER_BYTES):
            raise CheckpointError(f"{file}: truncated, or not a safetensors file")
        entries = _read_json(file, data[ALIGNMENT:begin].tobytes())
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            if name in self.specs:
                raise CheckpointError(f"{file}: {name} is in another file of {self.path} too")
            try:
                spec = Spec(name, entry["dtype"], tuple(map(int, entry["shape"])))
                start, end = (begin + int(offset) for offset in entry["data_offsets"])
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{file}: the header's entry {name} is wrong") from error
            known = spec.dtype in NUMPY_TYPES
            if not begin <= start <= end <= size or (known and end - start != spec.nbytes):
                raise CheckpointError(f"{file}: truncated or damaged at {name}")
            self.specs[name], self._places[name] = spec, (data, start)
        return set(entries)


def _files(path: Path) -> dict[Path, set[str] | None]:
    """Files to read, and what the index expects in each (None: there is no index)."""
    if path.is_file():
        return {path: None}
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder")
    index = path / INDEX_FILE
    if (path / SINGLE_FILE).is_file():
        return {path / SINGLE_FILE: None}
    if not index.is_file():
        loose = sorted(path.glob("*.safetensors"))
        if not loose:
            raise InputError(f"{path}: no {SINGLE_FILE}, {INDEX_FILE} or other .safetensors file")
        return dict.fromkeys(loose)
    files: dict[Path, set[str] | None] = {}
    try:
        for name, file in _read_json(index, index.read_bytes())["weight_map"].items():
            files.setdefault(path / Path(file).name, set()).add(name)
    except (KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not an index of safetensors files") from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{index}: lists files that are missing: {', '.join(missing)}")
    return files


def _read_json(path: Path, text: bytes) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON where it should be ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _header(specs: Sequence[Spec], framework: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": framework}}
    offset = 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(ALIGNMENT, "little") + text


def _write_all(stream: FileIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(stream.fileno(), rest) :]
