"""Files written straight from memory are read by the safetensors library; their hash is right."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from paddle_ernie.train.tensor_file import tensors_nbytes, write_tensors

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "uint8"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    entries=st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(SHAPES, DTYPES), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_safetensors_reads_back_the_same_bits(tmp_path: Path, entries: dict, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.integers(0, 255, (*shape, np.dtype(dtype).itemsize), np.uint8)
        .view(dtype)
        .reshape(shape)
        for name, (shape, dtype) in entries.items()
    }
    path = tmp_path / "x.safetensors"
    path.unlink(missing_ok=True)
    digest = write_tensors(path, arrays)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stat().st_size == tensors_nbytes(arrays)
    read = load_file(path)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_order_of_tensors_is_kept_and_data_is_aligned(tmp_path: Path) -> None:
    arrays = {name: np.arange(3, dtype=np.float32) for name in ("z", "a", "m")}
    write_tensors(tmp_path / "x", arrays)
    header = int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")
    assert header % 8 == 0
    with safe_open(tmp_path / "x", framework="numpy") as file:
        assert set(file.keys()) == set(arrays)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "x", {})
    assert (tmp_path / "x").read_text() == "mine"
