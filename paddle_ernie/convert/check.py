"""Read an export back and compare it with its source: every tensor, and the logits.

    files on disk                      ==  what the source's arrays encode to, bit for bit
    export --read_hf--> arrays         ==  source, rounded as the export's format says
    logits of both, in fp32 and, for FP8, in the FP8 recipe: the same bits

A wrong key of config.json (rope_theta, epsilon, top-k, tied embeddings) leaves all tensors right
and the logits wrong, so both are compared. Holds about four fp32 copies of the model. Called by
tools/export.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.export import (
    DRAFT_FOLDER,
    Tensors,
    draft_tensors,
    encoded,
    main_tensors,
    own_arrays,
    stored_type,
    unaligned,
)
from paddle_ernie.convert.fp8_files import decode, encode, is_quantised
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.convert.hf_files import BF16, TensorFiles, from_bf16, round_to_bf16
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.convert.paddle_layout import from_draft, from_paddle, iterate_paddle
from paddle_ernie.models.hf_names import from_hf, iterate_hf
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, read_model_config
from paddle_ernie.ops.arrays import view
from paddle_ernie.ops.numerics import FP32, Recipe
from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.manifest import verify_manifest

PROBE_TOKENS = 128
PROBE_SEED = 5

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CheckReport:
    """What was compared, and what the stored format costs."""

    tensors: int
    logits: int
    """Values compared in each precision."""
    max_logit_difference: float
    """Between source and export, both computed in fp32."""
    same_best_token: float
    """Share of probe positions at which both prefer the same token."""


def check_export(source: Path, exported: Path, target: TargetFormat) -> CheckReport:
    """Raise CheckpointError naming what differs; `target` is the format it was written in."""
    verify_manifest(exported, required=("config.json",))
    config, arrays = read_model_config(source), own_arrays(source)
    tensors = _compare_files(exported, main_tensors(arrays, config, target), target)
    if config.num_nextn_predict_layers:
        draft = draft_tensors(arrays, config, target)
        tensors += _compare_files(exported / DRAFT_FOLDER, draft, target)
    imported = read_hf(exported)
    rounded = rounded_arrays(arrays, config, target)
    _compare_arrays(exported, rounded, imported.arrays)
    back = _logits(imported.config, imported.arrays, FP32)
    _compare_logits(exported, "fp32", _logits(config, rounded, FP32), back)
    if target.fp8 and not unaligned(config, target):
        recipe = Recipe("fp8", "fp8", "fp8", target.power_of_two_scales)
        unquantised = rounded_arrays(arrays, config, replace(target, fp8=False))
        served = _logits(config, unquantised, recipe)
        _compare_logits(exported, "fp8", served, _logits(imported.config, imported.arrays, recipe))
    exact = _logits(config, arrays, FP32)
    return CheckReport(
        tensors,
        back.size,
        float(np.abs(back - exact).max()),
        float((back.argmax(axis=-1) == exact.argmax(axis=-1)).mean()),
    )


def rounded_arrays(arrays: Arrays, config: ModelConfig, target: TargetFormat) -> Arrays:
    """Our fp32 arrays with the values that `target` can hold."""
    iterate, read = (iterate_paddle, from_paddle) if target.paddle_layout else (iterate_hf, from_hf)
    result = read(_rounded(iterate(arrays, config), target), config)
    if config.num_nextn_predict_layers and not config.moe_layers:  # stored as a draft only
        draft = _rounded(draft_tensors(arrays, config, target), target)
        result |= from_draft(draft, transposed=not target.paddle_layout)
    return result


def _rounded(tensors: Tensors, target: TargetFormat) -> dict[str, np.ndarray]:
    """Public tensors as they read back."""
    result = {}
    for name, array in tensors:
        if target.fp8 and is_quantised(name):
            array = decode(*encode(array, power_of_two=target.power_of_two_scales))
        elif stored_type(name, target) == BF16:
            array = from_bf16(round_to_bf16(array))
        result[name] = array
    return result


def _compare_files(exported: Path, tensors: Tensors, target: TargetFormat) -> int:
    files, left = TensorFiles(exported), set()
    for spec, expected in encoded(tensors, target):
        found = files.specs.get(spec.name)
        if found != spec:
            raise CheckpointError(f"{exported}: found {found}, expected {spec}; export again")
        if not _same_bits(expected, files[spec.name]):
            raise CheckpointError(f"{exported}: {spec.name} differs from the source; export again")
        left.add(spec.name)
    if unknown := sorted(set(files) - left):
        raise CheckpointError(f"{exported}: tensors that no export has: {', '.join(unknown)}")
    return len(left)


def _compare_arrays(exported: Path, expected: Arrays, found: Arrays) -> None:
    differ = [name for name in expected if not _same_bits(expected[name], found[name])]
    if differ or len(expected) != len(found):
        raise CheckpointError(
            f"{exported}: read back, these arrays differ from the source: {', '.join(differ)}"
        )


def _compare_logits(exported: Path, precision: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    if not _same_bits(ours, theirs):
        raise CheckpointError(
            f"{exported}: its tensors are right, but the model of its config.json is another: "
            f"{precision} logits differ by up to {np.abs(ours - theirs).max():.3g}, expected 0"
        )


def _logits(config: ModelConfig, arrays: Arrays, recipe: Recipe) -> np.ndarray:
    """[1, S, V] of a fixed probe."""
    assert config.vocab_size is not None
    model = ErnieMoeModel(config, seed=None)
    load_arrays(model, arrays)
    model.recipe = recipe
    length = min(PROBE_TOKENS, config.max_position_embeddings)
    probe = np.random.default_rng(PROBE_SEED).integers(0, config.vocab_size, (1, length))
    with paddle.no_grad():
        return view(model.logits(probe)).copy()


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN equals itself, and -0 is not 0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")).all())
