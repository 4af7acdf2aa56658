"""The directory that FastDeploy, transformers and PaddleFormers read."""

import json
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.convert.export import export_model, own_arrays
from paddle_ernie.convert.fp8_files import encode
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.convert.hf_files import TensorFiles, from_bf16
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.models.model_dir import model_arrays, read_model_config, save_model_dir
from paddle_ernie.utils.errors import CheckpointError, InputError
from paddle_ernie.utils.manifest import verify_manifest
from tests.convert.conftest import KINDS

LARGE = 10**9
ATTENTION = {"q_proj": [16, 16], "k_proj": [8, 16], "v_proj": [8, 16], "o_proj": [16, 16]}
NORMS = {"input_layernorm": [16], "post_attention_layernorm": [16]}


def mlp(width: int) -> dict[str, list[int]]:
    return {"gate_proj": [width, 16], "up_proj": [width, 16], "down_proj": [16, width]}


def block(prefix: str, width: int | None) -> dict[str, tuple[str, list[int]]]:
    """Name -> (type, shape) of one layer of BASE, dense or with experts, written by hand."""
    parts = {f"self_attn.{name}": shape for name, shape in ATTENTION.items()} | NORMS
    if width:
        parts |= {f"mlp.{name}": shape for name, shape in mlp(width).items()}
    else:
        parts |= {f"mlp.shared_experts.{name}": shape for name, shape in mlp(16).items()}
        for expert in range(4):
            parts |= {f"mlp.experts.{expert}.{name}": shape for name, shape in mlp(8).items()}
    result = {f"{prefix}.{name}.weight": ("BF16", shape) for name, shape in parts.items()}
    if not width:
        result[f"{prefix}.mlp.gate.weight"] = ("F32", [4, 16])
        result[f"{prefix}.mlp.moe_statics.e_score_correction_bias"] = ("F32", [1, 4])
    return result


EXPECTED = {
    "model.embed_tokens.weight": ("BF16", [320, 16]),
    "model.norm.weight": ("BF16", [16]),
    "lm_head.weight": ("BF16", [320, 16]),
    **block("model.layers.0", 24),
    **block("model.layers.1", None),
    **block("model.layers.2", None),
    **block("model.mtp_block.0", 24),
    "model.mtp_emb_norm.0.weight": ("BF16", [16]),
    "model.mtp_hidden_norm.0.weight": ("BF16", [16]),
    "model.mtp_linear_proj.0.weight": ("BF16", [16, 32]),
}


@pytest.fixture
def export(tmp_path, model_dir):
    """export(kind, **format): the folder."""

    def run(kind: str, max_shard_bytes: int = LARGE, **options) -> Path:
        output = tmp_path / "export"
        target = TargetFormat(**options)
        export_model(model_dir(kind), output, target, max_shard_bytes=max_shard_bytes)
        return output

    return run


def test_names_types_and_shapes_of_the_torch_layout(export):
    files = TensorFiles(export("moe"))
    found = {spec.name: (spec.dtype, list(spec.shape)) for spec in files.specs.values()}
    assert found == EXPECTED


def test_the_model_word_is_once_in_a_name(export):
    """FastDeploy replaces it everywhere."""
    assert max(name.count("model") for name in TensorFiles(export("moe"))) == 1


def test_the_files_of_a_directory(export, model_dir):
    folder = export("moe", max_shard_bytes=8_000)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    shards = {name for name in names if name.endswith(".safetensors")}
    assert names - shards == {
        "config.json", "generation_config.json", "manifest.json", "model.safetensors.index.json",
        "tokenizer.json", "tokenizer_config.json", "mtp/config.json",
        "mtp/model.safetensors.index.json",
    }  # fmt: skip
    main = sorted(name for name in shards if "/" not in name)
    assert main == [
        f"model-{i:05d}-of-{len(main):05d}.safetensors" for i in range(1, len(main) + 1)
    ]
    assert len(main) > 3
    tokenizer = (folder / "tokenizer_config.json").read_text()
    assert tokenizer == (model_dir("moe") / "tokenizer_config.json").read_text()
    assert "<|turn_start|>" in json.loads(tokenizer)["chat_template"]
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 5] and generation["do_sample"] is True
    verify_manifest(folder, required=names - {"manifest.json"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paddle_layout", [False, True])
def test_fp32_comes_back_bit_for_bit(export, make_model, kind, paddle_layout):
    imported = read_hf(export(kind, dtype="float32", paddle_layout=paddle_layout))
    expected = model_arrays(make_model(kind))
    assert imported.arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(imported.arrays[name], array)


@pytest.mark.parametrize("kind", ["moe", "dense", "blocks"])
@pytest.mark.parametrize("options", [{}, {"fp8": True}, {"fp8": True, "paddle_layout": True}])
def test_an_import_exports_to_the_same_bytes(export, tmp_path, kind, options):
    first = export(kind, **options)
    imported = read_hf(first)
    assert imported.notes == ()
    save_model_dir(tmp_path / "again", imported.arrays, imported.config, imported.tokenizer_dir)
    target = TargetFormat(**options)
    export_model(tmp_path / "again", tmp_path / "second", target, max_shard_bytes=LARGE)
    # A draft is fused: blocks of another matrix, unless widths are whole blocks.
    requantised = kind == "moe" and options == {"fp8": True}
    for path in first.rglob("*"):
        inside = path.parent.name == "mtp" or path.name == "manifest.json"
        if path.is_file() and not (requantised and inside):
            assert (tmp_path / "second" / path.relative_to(first)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("paddle_layout", [False, True])
def test_fp8_codes_are_those_of_the_matrices_we_multiply_with(export, model_dir, paddle_layout):
    """Fused as they are in our model; `blocks` has widths of whole blocks."""
    folder = export("blocks", fp8=True, paddle_layout=paddle_layout)
    files, arrays = TensorFiles(folder), own_arrays(model_dir("blocks"))

    def joined(names: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if paddle_layout:
            (name,) = names
            return files[f"ernie.{name}.quant_weight"], files[f"ernie.{name}.weight_scale"]
        parts = [f"model.{name}.weight" for name in names]
        codes = np.concatenate([files[part] for part in parts]).T
        return codes, np.concatenate([files[f"{part}_scale_inv"] for part in parts]).T

    cases = {
        "layers.0.self_attn.qkv_proj": ("layers.0.self_attn", "qkv_proj", "q_proj k_proj v_proj"),
        "layers.0.mlp.gate_up_proj": ("layers.0.mlp", "up_gate_proj", "gate_proj up_proj"),
        "layers.1.mlp.experts_gate_up_proj": (
            "layers.1.mlp.experts.1", "up_gate_proj", "gate_proj up_proj",
        ),
        "layers.1.mlp.experts_down_proj": ("layers.1.mlp.experts.1", "down_proj", "down_proj"),
    }  # fmt: skip
    for ours, (stem, fused, separate) in cases.items():
        matrix = arrays[ours][1] if "experts_" in ours else arrays[ours]
        names = [fused] if paddle_layout else separate.split()
        codes, scales = joined([f"{stem}.{name}" for name in names])
        expected = encode(matrix)
        np.testing.assert_array_equal(codes, expected[0])
        np.testing.assert_array_equal(scales, expected[1])
    prefix = "ernie" if paddle_layout else "model"
    for name in ("embed_tokens.weight", "layers.1.mlp.gate.weight", "mtp_linear_proj.0.weight"):
        assert files.specs[f"{prefix}.{name}"].dtype in ("BF16", "F32")


def test_a_draft_is_fused_and_follows_the_layout_of_its_model(export, model_dir):
    arrays = own_arrays(model_dir("moe"))
    for paddle_layout in (False, True):
        folder = export("moe", paddle_layout=paddle_layout) / "mtp"
        fused = from_bf16(TensorFiles(folder)["ernie.mtp_block.0.self_attn.qkv_proj.weight"])
        expected = arrays["mtp.block.self_attn.qkv_proj"]
        np.testing.assert_allclose(fused if paddle_layout else fused.T, expected, rtol=2**-8)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("moe", {}, ["tokenizer.model"]),
        ("moe", {"fp8": True}, ["tokenizer.model", "q/k/v, dense gate/up, expert gate/up"]),
        ("blocks", {"fp8": True}, ["tokenizer.model"]),
        ("blocks", {"fp8": True, "paddle_layout": True}, ["tokenizer.model"]),
    ],
)
def test_notes(tmp_path, model_dir, kind, options, words):
    target = TargetFormat(**options)
    report = export_model(model_dir(kind), tmp_path / "out", target, max_shard_bytes=LARGE)
    assert len(report.notes) == len(words)
    for note, word in zip(report.notes, words, strict=True):
        assert word in note


def test_more_notes(tmp_path, make_model, model_dir):
    """Of a draft that FastDeploy takes for a MoE layer, and of partial blocks."""
    model = make_model("moe")
    changes = {"moe_layer_start_index": 0, "hidden_size": 132, "head_dim": 4}
    config = model.config.model_copy(update=changes)
    wide = type(model)(config)
    save_model_dir(tmp_path / "model", wide, config, model_dir("moe"))
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"")
    report = export_model(
        tmp_path / "model", tmp_path / "out", TargetFormat(fp8=True), max_shard_bytes=LARGE
    )
    first, _, last = report.notes
    assert "serve without the draft" in first
    assert "widths 132 of FP8 matrices" in last
    assert (tmp_path / "out" / "tokenizer.model").is_file()


def test_what_is_in_the_way(tmp_path, model_dir):
    source = model_dir("tied")

    def run(output: Path, source: Path = source) -> None:
        export_model(source, output, TargetFormat(), max_shard_bytes=LARGE)

    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file; expected a folder"):
        run(tmp_path / "file")
    with pytest.raises(InputError, match="holds files that are not an export"):
        run(tmp_path)
    run(tmp_path / "out")
    run(tmp_path / "out")  # an older export is replaced
    broken = tmp_path / "broken"
    save_model_dir(broken, own_arrays(source), read_model_config(source), source)
    (broken / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="truncated or altered"):
        run(tmp_path / "none", broken)
    assert not (tmp_path / "none").exists()
