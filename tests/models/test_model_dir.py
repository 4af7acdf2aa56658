import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from paddle_ernie.models.model_dir import (
    load_arrays,
    load_model_dir,
    model_arrays,
    read_model_config,
    save_model_dir,
    verify_model_dir,
)
from paddle_ernie.utils.errors import CheckpointError, InputError


@pytest.fixture
def tokenizer_dir(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def saved(tmp_path, make_model, tokenizer_dir):
    model = make_model(num_nextn_predict_layers=1)
    save_model_dir(tmp_path / "model", model, model.config, tokenizer_dir)
    return model, tmp_path / "model"


def test_round_trip(saved):
    model, path = saved
    loaded = load_model_dir(path)
    assert loaded.config == model.config
    own = model_arrays(model)
    for name, array in model_arrays(loaded).items():
        assert np.array_equal(array, own[name]), name
    ids = np.array([[1, 2, 3]])
    assert np.array_equal(loaded.logits(ids).numpy(), model.logits(ids).numpy())
    assert sorted(file.name for file in path.iterdir()) == [
        "config.json", "manifest.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip


def test_arrays_can_be_saved_in_place_of_a_model(saved, tmp_path, tokenizer_dir):
    model, path = saved
    save_model_dir(tmp_path / "again", model_arrays(model), model.config, tokenizer_dir)
    first, second = (load_file(p / "model.safetensors") for p in (path, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_saving_replaces_the_older_directory(saved, make_model, tokenizer_dir):
    _, path = saved
    (path / "stale.txt").write_text("old")
    other = make_model(seed=9)
    save_model_dir(path, other, other.config, tokenizer_dir)
    assert not (path / "stale.txt").exists()
    assert np.array_equal(load_model_dir(path).embed_tokens.numpy(), other.embed_tokens.numpy())


def test_a_failed_save_leaves_the_older_directory(saved, make_model, tmp_path):
    model, path = saved
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        save_model_dir(path, make_model(seed=9), model.config, tmp_path / "nowhere")
    assert np.array_equal(load_model_dir(path).embed_tokens.numpy(), model.embed_tokens.numpy())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "tokenizer"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["byte", "truncated", "missing"])
def test_damage_is_refused_by_name(saved, name, damage):
    _, path = saved
    file = path / name
    content = bytearray(file.read_bytes())
    if damage == "byte":
        content[-2] ^= 1
        file.write_bytes(content)
    elif damage == "truncated":
        file.write_bytes(content[:-1])
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=name):
        verify_model_dir(path)
    with pytest.raises(CheckpointError, match=name):
        load_model_dir(path)


def test_what_is_not_a_model_directory(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="not a model directory"):
            load_model_dir(path)
        with pytest.raises(CheckpointError, match=r"manifest\.json: missing"):
            verify_model_dir(path)


def test_a_foreign_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match="format None"):
        read_model_config(tmp_path)


def test_broken_json_and_unknown_keys(saved):
    _, path = saved
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "moe_kk": 3}))
    with pytest.raises(CheckpointError, match="moe_kk"):
        read_model_config(path)
    (path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_model_config(path)


def test_weights_that_do_not_fit_are_listed_by_name(make_model):
    model = make_model()
    arrays = dict(model_arrays(model))
    del arrays["norm"]
    arrays["layers.0.self_attn.o_proj"] = np.zeros((3, 3), np.float32)
    arrays["layers.1.mlp.gate"] = arrays["layers.1.mlp.gate"].astype(np.float64)
    arrays["lm_head"] = np.zeros((96, 32), np.float32)
    before = model.embed_tokens.numpy()
    with pytest.raises(CheckpointError) as error:
        load_arrays(model, {**arrays, "embed_tokens": before + 1})
    text = str(error.value)
    for line in (
        "norm: missing",
        "layers.0.self_attn.o_proj: float32[3, 3], expected float32[32, 32]",
        "layers.1.mlp.gate: float64[8, 32], expected float32[8, 32]",
        "lm_head: the model has no such parameter",
    ):
        assert line in text
    assert np.array_equal(model.embed_tokens.numpy(), before)  # nothing was loaded


def test_the_config_is_read_without_paddle(saved):
    _, path = saved
    code = (
        "import sys; from paddle_ernie.models.model_dir import read_model_config, verify_model_dir;"
        f"verify_model_dir({str(path)!r});"
        f"assert read_model_config({str(path)!r}).hidden_size == 32;"
        "assert 'paddle' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
