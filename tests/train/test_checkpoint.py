"""Checkpoints are whole or refused by name, the newest whole one is found, old ones go."""

import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import WEIGHTS_FILE, load_model_dir, model_arrays
from paddle_ernie.train.checkpoint import (
    OPTIMIZER_FILE,
    STATE_FILE,
    Snapshot,
    checkpoint_path,
    list_checkpoints,
    read_checkpoint,
    read_newest,
    remove_after,
    write_checkpoint,
)
from paddle_ernie.train.checkpoint_writer import CheckpointWriter
from paddle_ernie.utils.errors import CheckpointError, TrainingError
from tests.train.tiny import TINY

FILES = (WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE, "config.json", "tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["some text to learn pieces from, some more text"], TINY.vocab_size)


@pytest.fixture(scope="module")
def model(make_model: Callable[..., ErnieMoeModel]) -> ErnieMoeModel:
    return make_model()


@pytest.fixture
def save(tmp_path: Path, model: ErnieMoeModel, tokenizer: Tokenizer) -> Callable[[int], Path]:
    def write(step: int) -> Path:
        path = checkpoint_path(tmp_path, step)
        write_checkpoint(path, make_snapshot(model, step), TINY, tokenizer)
        return path

    return write


def make_snapshot(model: ErnieMoeModel, step: int) -> Snapshot:
    weights = {name: np.array(array) for name, array in model_arrays(model).items()}
    moments = {f"{name}.moment1": array + step for name, array in weights.items()}
    return Snapshot(step, weights, moments, {"step": step, "loader": {"position": step * 8}})


def assert_same(one: Snapshot, other: Snapshot) -> None:
    assert one.step == other.step
    assert one.state == other.state
    for mine, theirs in ((one.weights, other.weights), (one.optimizer, other.optimizer)):
        assert mine.keys() == theirs.keys()
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def test_round_trip_keeps_every_bit(save: Callable[[int], Path], model: ErnieMoeModel) -> None:
    assert_same(read_checkpoint(save(12)), make_snapshot(model, 12))


def test_a_checkpoint_is_a_model_directory(
    save: Callable[[int], Path], model: ErnieMoeModel, tokenizer: Tokenizer
) -> None:
    path = save(3)
    loaded = model_arrays(load_model_dir(path))
    for name, array in model_arrays(model).items():
        assert array.tobytes() == loaded[name].tobytes()
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_is_refused_by_name_and_the_previous_one_is_used(
    save: Callable[[int], Path], caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    save(10)
    file = save(20) / name
    data = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        read_checkpoint(file.parent)
    logging.getLogger("paddle_ernie").propagate = True
    found = read_newest(file.parent.parent)
    assert found is not None and found.step == 10
    assert str(file) in caplog.text or (str(file.parent) in caplog.text and name in caplog.text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data())
def test_any_flipped_bit_is_noticed(save: Callable[[int], Path], data: st.DataObject) -> None:
    path = save(1)
    try:
        file = path / data.draw(st.sampled_from(FILES))
        content = bytearray(file.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    finally:
        shutil.rmtree(path)


def test_no_checkpoint_at_all_and_none_that_is_whole(
    tmp_path: Path, save: Callable[[int], Path]
) -> None:
    assert read_newest(tmp_path) is None
    (save(5) / WEIGHTS_FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of 1"):
        read_newest(tmp_path)


def test_missing_folder_and_plain_model_directory(
    tmp_path: Path, save: Callable[[int], Path]
) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        read_checkpoint(tmp_path / "step-00000099")
    path = save(4)
    (path / OPTIMIZER_FILE).unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"].pop(OPTIMIZER_FILE)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors.*init_from"):
        read_checkpoint(path)


def test_files_that_an_edited_manifest_leaves_out_are_not_trusted(
    tmp_path: Path, save: Callable[[int], Path]
) -> None:
    _, edited = save(10), save(20)
    (edited / "manifest.json").write_text('{"version": 1, "files": {}}')
    (edited / WEIGHTS_FILE).write_bytes(b"anything")
    with pytest.raises(CheckpointError, match=r"manifest\.json: does not list model\.safetensors"):
        read_checkpoint(edited)
    newest = read_newest(tmp_path)
    assert newest is not None and newest.step == 10


def test_newer_ones_are_removed(tmp_path: Path, save: Callable[[int], Path]) -> None:
    for step in (100, 20, 3):
        save(step)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-00000100",
        "step-00000020",
        "step-00000003",
    ]
    remove_after(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000020"]


@pytest.fixture
def writer(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[CheckpointWriter]:
    writer = CheckpointWriter(tmp_path, keep=2, config=TINY, tokenizer=tokenizer)
    yield writer
    writer.close()


def test_writer_keeps_the_newest(
    tmp_path: Path, writer: CheckpointWriter, model: ErnieMoeModel
) -> None:
    for step in (1, 2, 3, 4):
        writer.save(make_snapshot(model, step))
    writer.wait()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004", "step-00000003"]
    assert_same(read_checkpoint(checkpoint_path(tmp_path, 4)), make_snapshot(model, 4))
    assert writer.seconds > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint of the tiny model, but not two."""
    path = tmp_path / "disk"
    path.mkdir()
    size = 2 * sum(array.nbytes for array in make_snapshot_sizes()) * 3 // 2
    options = f"size={size}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield path
    subprocess.run(["umount", path], check=True)


def make_snapshot_sizes() -> list[np.ndarray]:
    from paddle_ernie.models.cost import parameter_counts

    return [np.empty(parameter_counts(TINY).total, np.float32)]


def test_full_disk_is_an_error_that_names_path_and_bytes_and_leaves_the_previous_one(
    small_disk: Path, model: ErnieMoeModel, tokenizer: Tokenizer
) -> None:
    writer = CheckpointWriter(small_disk, keep=2, config=TINY, tokenizer=tokenizer)
    writer.save(make_snapshot(model, 1))
    writer.wait()
    writer.save(make_snapshot(model, 2))
    with pytest.raises(
        TrainingError, match=r"step-00000002: No space left.*needs.*MB.*step-00000001"
    ):
        writer.wait()
    writer.close()
    assert [path.name for path in small_disk.iterdir()] == ["step-00000001"]
    assert_same(read_newest(small_disk), make_snapshot(model, 1))
