"""The check of an export finds what is wrong with one."""

import json
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.convert.check import check_export
from paddle_ernie.convert.export import export_model
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.manifest import write_manifest
from tests.convert.conftest import KINDS

FORMATS = {
    "bf16": TargetFormat(),
    "fp32": TargetFormat("float32"),
    "fp8": TargetFormat(fp8=True),
    "ue8m0": TargetFormat(fp8=True, power_of_two_scales=True),
    "paddle": TargetFormat("float32", paddle_layout=True),
    "paddle fp8": TargetFormat(fp8=True, paddle_layout=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_exports_pass(tmp_path, model_dir, kind, name):
    target = FORMATS[name]
    export_model(model_dir(kind), tmp_path / "out", target, max_shard_bytes=10**9)
    report = check_export(model_dir(kind), tmp_path / "out", target)
    assert report.logits == 64 * 320
    exact = target.dtype == "float32" and not target.fp8
    assert (report.max_logit_difference == 0) == exact
    assert report.same_best_token > (0.99 if exact else 0.3)


@pytest.fixture
def exported(tmp_path, model_dir) -> Path:
    export_model(model_dir("moe"), tmp_path / "out", TargetFormat(), max_shard_bytes=10**9)
    return tmp_path / "out"


def reconfigured(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_byte_that_flipped(exported, model_dir):
    path = exported / "model-00001-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="altered: SHA-256"):
        check_export(model_dir("moe"), exported, TargetFormat())
    write_manifest(exported)
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from the source"):
        check_export(model_dir("moe"), exported, TargetFormat())


def test_the_draft_is_compared_too(exported, model_dir):
    path = exported / "mtp" / "model-00001-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    write_manifest(exported)
    with pytest.raises(CheckpointError, match=r"mtp: ernie.mtp_block.0.mlp.down_proj"):
        check_export(model_dir("moe"), exported, TargetFormat())


@pytest.mark.parametrize("change", [{"rope_theta": 10_000.0}, {"rms_norm_eps": 0.1}, {"moe_k": 1}])
def test_a_wrong_key_of_the_configuration(exported, model_dir, change):
    reconfigured(exported, **change)
    write_manifest(exported)
    with pytest.raises(CheckpointError, match="is another: fp32 logits differ by up to"):
        check_export(model_dir("moe"), exported, TargetFormat())


def test_another_format_or_another_model(exported, model_dir, tmp_path):
    with pytest.raises(CheckpointError, match=r"dtype='BF16'.*expected.*dtype='F32'"):
        check_export(model_dir("moe"), exported, TargetFormat("float32"))
    with pytest.raises(CheckpointError, match="expected"):
        check_export(model_dir("blocks"), exported, TargetFormat())
    with pytest.raises(CheckpointError, match=r"manifest.json: missing"):
        check_export(model_dir("moe"), tmp_path / "nothing", TargetFormat())


def test_rounding_costs_what_it_says(exported, model_dir):
    report = check_export(model_dir("moe"), exported, TargetFormat())
    assert 0 < report.max_logit_difference < 1
    assert np.isfinite(report.max_logit_difference)
