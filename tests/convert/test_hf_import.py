"""Public checkpoints that are whole are read, others refused by the names of their tensors."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paddle_ernie.convert.export import export_model
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.convert.hf_files import E4M3, FP32, Spec, write_sharded
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import write_json

FILE = "model-00001-of-00001.safetensors"
BIAS = "model.layers.1.mlp.moe_statics.e_score_correction_bias"


@pytest.fixture
def checkpoint(tmp_path, model_dir):
    """checkpoint(kind, change): an fp32 export whose tensors and config were changed in place."""

    def make(kind: str = "moe", change=lambda tensors, fields: None, **options) -> Path:
        folder = tmp_path / "checkpoint"
        target = TargetFormat(**{"dtype": "float32", **options})
        export_model(model_dir(kind), folder, target, max_shard_bytes=10**9)
        tensors = load_file(folder / FILE)
        fields = json.loads((folder / "config.json").read_text())
        change(tensors, fields)
        (folder / FILE).unlink()
        (folder / "model.safetensors.index.json").unlink()
        save_file(
            {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
        )
        write_json(folder / "config.json", fields)
        return folder

    return make


def test_names_as_transformers_saves_them(checkpoint, make_model):
    def change(tensors, fields):
        tensors[BIAS.replace("mlp.", "mlp.gate.")] = tensors.pop(BIAS)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
        for name in list(tensors):
            if ".mtp_" in name:
                del tensors[name]

    folder = checkpoint("moe", change)
    (folder / "mtp" / "model.safetensors.index.json").unlink()
    imported = read_hf(folder)
    assert "announces a prediction block, the weights have none" in imported.notes[0]
    assert imported.config.num_nextn_predict_layers == 0
    expected = model_arrays(make_model("moe"))
    for name, array in imported.arrays.items():
        np.testing.assert_array_equal(array, expected[name])
    assert imported.tokenizer_dir == folder


def test_half_precision(checkpoint, make_model):
    def change(tensors, fields):
        for name in tensors:
            tensors[name] = tensors[name].astype(np.float16)

    imported = read_hf(checkpoint("tied", change))
    for name, array in model_arrays(make_model("tied")).items():
        assert imported.arrays[name].dtype == np.float32
        np.testing.assert_array_equal(imported.arrays[name], array.astype(np.float16))


def test_faulty_tensors_are_all_named(checkpoint):
    def change(tensors, fields):
        del tensors["model.norm.weight"], tensors[BIAS]
        tensors["model.layers.0.mlp.extra.weight"] = np.zeros(2, np.float32)
        tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((16, 8), np.float32)

    with pytest.raises(InputError) as raised:
        read_hf(checkpoint("moe", change))
    assert str(raised.value).split("\n")[1:] == [
        "  model.layers.0.mlp.extra.weight: unknown, the model has no such tensor",
        "  model.layers.0.self_attn.q_proj.weight: shape [16, 8], expected [16, 16]",
        f"  {BIAS}: missing",
        "  model.norm.weight: missing",
    ]


@pytest.mark.parametrize("paddle_layout", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_a_head_beside_tied_embeddings(checkpoint, paddle_layout, same):
    def change(tensors, fields):
        prefix = "ernie" if paddle_layout else "model"
        head = tensors[f"{prefix}.embed_tokens.weight"] + (0 if same else 1)
        tensors["lm_head.weight"] = head.T if paddle_layout else head

    folder = checkpoint("tied", change, paddle_layout=paddle_layout)
    if same:
        assert "lm_head" not in read_hf(folder).arrays
    else:
        with pytest.raises(InputError, match=r"lm_head.weight differs .* set it to false"):
            read_hf(folder)


@pytest.mark.parametrize("kind", ["tied", "moe"])
def test_a_configuration_silent_on_tying_follows_the_weights(checkpoint, kind):
    imported = read_hf(checkpoint(kind, lambda tensors, fields: fields.pop("tie_word_embeddings")))
    assert imported.config.tie_word_embeddings == (kind == "tied")


def test_a_second_prediction_block_is_refused(checkpoint):
    def change(tensors, fields):
        tensors["model.mtp_block.1.input_layernorm.weight"] = np.zeros(16, np.float32)

    with pytest.raises(InputError, match=r"mtp_block.1.input_layernorm.weight: unknown"):
        read_hf(checkpoint("moe", change))


@pytest.mark.parametrize(("scale", "words"), [(0.25, "powers of two"), (0.3, "another rule")])
def test_fp8_of_other_makers_is_read_exactly(tmp_path, checkpoint, scale, words):
    """Their scales are not ours, and a note says what follows."""
    folder = checkpoint("tied")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    codes = tensors.pop(name).astype(ml_dtypes.float8_e4m3fn)
    codes[0, 0] = 1.25  # the largest: not of the form that max / 448 gives
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "rest.safetensors")
    data = {
        Spec(name, E4M3, (16, 16)): codes.view(np.uint8),
        Spec(f"{name}_scale_inv", FP32, (1, 1)): np.full((1, 1), scale, np.float32),
    }
    write_sharded(folder, list(data), data.items(), 10**9, "pt")
    (folder / "model.safetensors.index.json").unlink()
    imported = read_hf(folder)
    expected = codes.astype(np.float32) * np.float32(scale)
    np.testing.assert_array_equal(imported.arrays["layers.0.self_attn.o_proj"], expected.T)
    assert words in imported.notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; give a folder with a public checkpoint"),
        ("{", "not JSON"),
        ("[]", "expected a JSON object, found list"),
        ('{"format": "paddle_ernie"}', "already a model directory of ours"),
        ('{"quantization_config": {"quant_method": "gptq"}}', "quantization_config is"),
    ],
)
def test_other_configurations(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_hf(tmp_path)
