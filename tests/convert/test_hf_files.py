"""Sharded safetensors in bf16 and FP8."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from paddle_ernie.convert.hf_files import (
    BF16,
    E4M3,
    FP32,
    INDEX_FILE,
    Spec,
    TensorFiles,
    from_bf16,
    plan_shards,
    round_to_bf16,
    write_sharded,
)
from paddle_ernie.utils.errors import CheckpointError, InputError


@given(hnp.arrays(np.uint32, st.integers(0, 40)))
def test_bf16_rounds_as_ml_dtypes_does(bits):
    values = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    rounded = round_to_bf16(values)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(from_bf16(rounded)))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(rounded[number], expected.view(np.uint16)[number])
    np.testing.assert_array_equal(round_to_bf16(from_bf16(rounded)), rounded)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 400))
def test_shards_keep_order_and_limit(sizes, limit):
    specs = [Spec(f"t{i}", FP32, (size,)) for i, size in enumerate(sizes)]
    shards = plan_shards(specs, limit)
    assert [spec for shard in shards for spec in shard] == specs
    for shard, following in zip(shards, [*shards[1:], None], strict=True):
        total = sum(spec.nbytes for spec in shard)
        assert total <= limit or len(shard) == 1
        assert following is None or total + following[0].nbytes > limit


@pytest.fixture
def written(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        Spec("a", FP32, (3, 4)): rng.normal(size=(3, 4)).astype(np.float32),
        Spec("b", BF16, (5,)): round_to_bf16(rng.normal(size=5).astype(np.float32)),
        Spec("c", E4M3, (2, 3)): np.arange(6, dtype=np.uint8).reshape(2, 3),
        Spec("d", FP32, (2, 2)): np.eye(2, dtype=np.float32).T,
        Spec("e", FP32, (0, 2)): np.empty((0, 2), np.float32),
    }
    write_sharded(tmp_path, list(arrays), iter(arrays.items()), 30, "pt")
    return tmp_path, arrays


def test_files_are_read_back_and_by_the_library(written):
    folder, arrays = written
    files = TensorFiles(folder)
    assert list(files.specs.values()) == list(arrays)
    for spec, array in arrays.items():
        np.testing.assert_array_equal(files[spec.name], array)
    first = folder / "model-00001-of-00003.safetensors"
    np.testing.assert_array_equal(load_file(first)["a"], files["a"])
    index = json.loads((folder / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == 48 + 10 + 6 + 16
    assert index["weight_map"]["a"] == first.name
    np.testing.assert_array_equal(files.values_of("b"), from_bf16(arrays[files.specs["b"]]))


def test_half_precision_and_single_files(tmp_path):
    values = np.array([1.5, -2], np.float16)
    save_file({"x": values}, tmp_path / "model.safetensors")
    files = TensorFiles(tmp_path)
    assert files.values_of("x").dtype == np.float32
    np.testing.assert_array_equal(files.values_of("x"), values)
    save_file({"n": np.array([1], np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="n is stored as I64; expected one of F32"):
        TensorFiles(tmp_path)["n"]


def test_loose_files_are_read_and_duplicates_are_refused(tmp_path):
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "one.safetensors")
    save_file({"y": np.zeros(1, np.float32)}, tmp_path / "two.safetensors")
    assert set(TensorFiles(tmp_path)) == {"x", "y"}
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match="x is in another file"):
        TensorFiles(tmp_path)


def damage_header(file):
    data = file.read_bytes()
    file.write_bytes(data[:8] + b"x" + data[9:])


def cut(file):
    file.write_bytes(file.read_bytes()[:-4])


def lie_about_length(file):
    file.write_bytes(struct.pack("<Q", 1 << 40) + file.read_bytes()[8:])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage_header, "not JSON where it should be"),
        (cut, "truncated or damaged at"),
        (lie_about_length, "truncated, or not a safetensors file"),
        (lambda file: file.unlink(), "lists files that are missing: model-00001"),
        (lambda file: file.write_bytes(b"abc"), "3 bytes; expected a safetensors file"),
    ],
)
def test_damaged_files_are_named(written, harm, message):
    folder, _ = written
    harm(folder / "model-00001-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=message) as raised:
        TensorFiles(folder)
    assert str(folder) in str(raised.value)


def test_an_index_that_promises_too_much(written):
    folder, _ = written
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
    (folder / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(
        CheckpointError, match="places these tensors here, but they are not:\n  ghost"
    ):
        TensorFiles(folder)


@pytest.mark.parametrize(("name", "message"), [("", "no model.safetensors"), ("x", "no such file")])
def test_no_files(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        TensorFiles(tmp_path / name)
