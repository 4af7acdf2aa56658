"""Directories to weights: what is read, refused, and how it is named."""

import json

import numpy as np
import pytest

from paddle_ernie.convert.export import export_model
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.models.model_dir import read_model_config
from paddle_ernie.serve.engine.control import WeightsUpdate
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.weights import checksum, find_snapshot, load_snapshot, load_weights
from paddle_ernie.utils.errors import CheckpointError, InputError
from tests.serve.engines import TINY, request, run_all


def snapshot(save_model, folder, step, **fields):
    path = save_model(folder / f"v{step}", seed=step)
    lines = {"step": step, **fields}
    text = "".join(f"{key}: {value}\n" for key, value in lines.items())
    (path / "version.yaml").write_text(text)
    return path


def test_a_directory_with_and_without_a_version(model_dir, save_model, tmp_path, make_arrays):
    weights = load_weights(model_dir, EngineOptions())
    assert weights.version == 0
    assert weights.checksum == checksum(make_arrays())
    assert (weights.tensors, weights.bytes) == (28, sum(a.nbytes for a in make_arrays().values()))
    assert load_weights(snapshot(save_model, tmp_path, 12), EngineOptions()).version == 12


def test_an_exported_directory_is_served_as_the_model_itself(model_dir, tmp_path):
    target = TargetFormat(dtype="float32")
    export_model(model_dir, tmp_path / "exported", target, max_shard_bytes=1 << 20)
    weights = load_weights(tmp_path / "exported", EngineOptions())
    assert weights.checksum == load_weights(model_dir, EngineOptions()).checksum
    shard = next((tmp_path / "exported").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match="safetensors: altered"):
        load_weights(tmp_path / "exported", EngineOptions())


def test_the_checksum_is_of_names_shapes_and_bytes():
    one = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}
    others = [
        {"a": one["a"], "c": one["b"]},
        {"a": one["a"].reshape(3, 2), "b": one["b"]},
        {"a": one["a"], "b": np.float32([1, 1, 1, np.nextafter(np.float32(1), np.float32(2))])},
        {"a": one["b"], "b": one["a"]},
    ]
    assert len({checksum(arrays) for arrays in (one, *others)}) == 5
    assert checksum(dict(reversed(one.items()))) == checksum(one)


def test_the_fingerprint_says_the_precision(model_dir):
    names = {
        load_weights(model_dir, EngineOptions(precision=precision)).fingerprint
        for precision in ("fp32", "bf16", "fp8")
    }
    assert len(names) == 3


def test_a_sub_model_and_other_numbers_of_experts(model_dir, make_engine):
    texts = {}
    for name, options in {
        "full": {}, "k1": {"moe_k": 1}, "k3": {"moe_k": 3},
        "subnet": {"subnet": "layers=2,experts=4,top_k=1"},
    }.items():  # fmt: skip
        weights = load_weights(model_dir, EngineOptions(**options))
        engine = make_engine(weights)
        engine.add(request("0", range(40, 60), routes=True))
        output = run_all(engine)["0"]
        texts[name] = output.token_ids
        config = weights.model.config
        assert output.routes.shape == (27, len(config.moe_layers), config.moe_k)
    assert len(set(texts.values())) == 4
    assert config.moe_num_experts == 4 and config.num_hidden_layers == 2


@pytest.mark.parametrize("options", [{"subnet": "layers=9"}, {"moe_k": 9}])
def test_what_does_not_fit_the_model(model_dir, options):
    with pytest.raises(InputError):
        load_weights(model_dir, EngineOptions(**options))


def test_snapshots_are_found_by_version_by_path_or_as_the_newest(save_model, tmp_path):
    for step in (2, 10):
        snapshot(save_model, tmp_path, step)
    for update, found in (
        (WeightsUpdate(), "v10"),
        (WeightsUpdate(version="v2"), "v2"),
        (WeightsUpdate(path="v2"), "v2"),
        (WeightsUpdate(path=str(tmp_path / "v2")), "v2"),
    ):
        assert find_snapshot(update, tmp_path) == (tmp_path / found).resolve()


def test_snapshots_outside_the_folder_are_refused(save_model, tmp_path):
    snapshot(save_model, tmp_path, 1)
    inside = tmp_path / "snapshots"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "v1")
    for name in ("../v1", str(tmp_path / "v1"), "link", "."):
        with pytest.raises(InputError, match="not inside"):
            find_snapshot(WeightsUpdate(path=name), inside)
    with pytest.raises(InputError, match="holds no snapshot"):
        find_snapshot(WeightsUpdate(), inside)
    with pytest.raises(InputError, match="without a folder"):
        find_snapshot(WeightsUpdate(version="v1"), None)


@pytest.mark.parametrize(
    "text", ["", "step: x", "step: -1", "step: true", "- 1", "\x00", "step: ["]
)
def test_a_version_file_that_says_nothing(save_model, tmp_path, text):
    (snapshot(save_model, tmp_path, 1) / "version.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"version\.yaml"):
        load_snapshot(WeightsUpdate(version="v1"), EngineOptions(weights_dir=tmp_path))


def test_a_checksum_that_is_asked_for(save_model, make_arrays, tmp_path):
    options = EngineOptions(weights_dir=tmp_path)
    snapshot(save_model, tmp_path, 1)
    snapshot(save_model, tmp_path, 2, checksum=checksum(make_arrays(2)))
    snapshot(save_model, tmp_path, 3, checksum=checksum(make_arrays(2)))
    assert load_snapshot(WeightsUpdate(version="v2", verify_checksum=True), options).version == 2
    with pytest.raises(CheckpointError, match="no checksum to compare"):
        load_snapshot(WeightsUpdate(version="v1", verify_checksum=True), options)
    with pytest.raises(CheckpointError, match="publish the snapshot again"):
        load_snapshot(WeightsUpdate(version="v3"), options)


def test_weights_that_are_not_numbers_are_refused(make_arrays, tmp_path, save_model):
    from paddle_ernie.serve.engine.weights import pack_weights

    arrays = make_arrays()
    arrays["norm"][3] = np.nan
    with pytest.raises(CheckpointError, match="norm: not finite"):
        pack_weights(arrays, TINY, 1, EngineOptions())


def test_a_config_of_neither_kind_names_ours(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(InputError, match="import other formats first"):
        load_weights(tmp_path, EngineOptions())
    with pytest.raises(InputError, match="no such folder"):
        read_model_config(tmp_path / "none")
