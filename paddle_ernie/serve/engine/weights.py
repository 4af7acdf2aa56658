"""From a directory to weights that are served. Called by the engine's worker, off its thread.

    our model directory (manifest checked) | exported Hugging Face directory
        -> arrays, cut to the sub-model -> checksum -> InferenceModel

A snapshot is a model directory with `version.yaml`:

    <weights_dir>/<version>/   config.json model.safetensors manifest.json   version.yaml: step: N

Everything is read, checked and packed before the engine sees it, so that what goes wrong leaves the
old weights serving.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.elastic.extract import extract_arrays
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import parse_subnet
from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import (
    CONFIG_FILE,
    FORMAT,
    WEIGHTS_FILE,
    load_arrays,
    read_model_config,
    verify_model_dir,
)
from paddle_ernie.ops import library
from paddle_ernie.ops.numerics import PRECISIONS
from paddle_ernie.serve.engine.control import WeightsUpdate
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.utils.errors import CheckpointError, InputError
from paddle_ernie.utils.manifest import MANIFEST_FILE, verify_manifest

VERSION_FILE = "version.yaml"


@dataclass(frozen=True)
class ServedWeights:
    """One version of the weights."""

    model: InferenceModel | None
    """None while the engine sleeps."""
    version: int
    checksum: str
    """SHA-256 over the fp32 arrays, names and bytes, in the order of their names."""
    fingerprint: str
    tensors: int
    bytes: int
    path: Path | None
    """Where they were read from; None: came from memory."""


def load_weights(path: Path, options: EngineOptions) -> ServedWeights:
    """Read, check and pack the weights of a directory."""
    source = _read(Path(path))
    version = read_version(path)
    return pack_weights(source.arrays, source.config, version.step, options, path=Path(path))


def pack_weights(
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    version: int,
    options: EngineOptions,
    *,
    path: Path | None = None,
) -> ServedWeights:
    """Weights to serve from our named fp32 arrays."""
    if options.subnet is not None:
        subnet = parse_subnet(options.subnet, config)
        arrays = extract_arrays(arrays, config, subnet)
        config = standalone_config(config, subnet)
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise CheckpointError(
            f"{path or 'weights'}: {', '.join(sorted(broken)[:5])}: not finite; expected numbers "
            "in every tensor: serve an earlier version"
        )
    model = ErnieMoeModel(config, seed=None)
    load_arrays(model, arrays)
    return ServedWeights(
        model=InferenceModel(model, recipe=PRECISIONS[options.precision], moe_k=options.moe_k),
        version=version,
        checksum=checksum(arrays),
        fingerprint=library.fingerprint(options.precision),
        tensors=len(arrays),
        bytes=sum(array.nbytes for array in arrays.values()),
        path=path,
    )


def load_snapshot(update: WeightsUpdate, options: EngineOptions) -> ServedWeights:
    """The weights that an update asks for."""
    folder = find_snapshot(update, options.weights_dir)
    version = read_version(folder)
    weights = load_weights(folder, options)
    if update.verify_checksum and version.checksum is None:
        raise CheckpointError(
            f"{folder / VERSION_FILE}: no checksum to compare with; write `checksum:` or do not "
            "ask for verify_checksum"
        )
    if version.checksum not in (None, weights.checksum):
        raise CheckpointError(
            f"{folder / VERSION_FILE}: checksum {version.checksum}, but the weights have "
            f"{weights.checksum}; publish the snapshot again"
        )
    return weights


def find_snapshot(update: WeightsUpdate, weights_dir: Path | None) -> Path:
    """Its folder, which lies inside `weights_dir`."""
    if weights_dir is None:
        raise InputError("new weights: the server was started without a folder for snapshots")
    root = weights_dir.resolve()
    if update.path is None and update.version is None:
        return _newest(root)
    folder = (root / (update.path or str(update.version))).resolve()
    if root not in folder.parents:
        raise InputError(f"new weights: {folder} is not inside {root}, the folder for snapshots")
    if not (folder / VERSION_FILE).is_file():
        raise InputError(f"new weights: {folder} has no {VERSION_FILE}; expected a snapshot")
    return folder


@dataclass(frozen=True)
class SnapshotVersion:
    """What version.yaml says."""

    step: int = 0
    checksum: str | None = None


def read_version(folder: Path) -> SnapshotVersion:
    """Step 0 for a directory without version.yaml."""
    file = Path(folder) / VERSION_FILE
    if not file.is_file():
        return SnapshotVersion()
    try:
        fields = yaml.safe_load(file.read_text(encoding="utf-8"))
        step, expected = fields["step"], fields.get("checksum")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file}: expected `step: NUMBER`; {error!r}") from error
    if type(step) is not int or step < 0:
        raise CheckpointError(f"{file}: step is {step!r}; expected a whole number of 0 or more")
    return SnapshotVersion(step, None if expected is None else str(expected))


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()


def _newest(root: Path) -> Path:
    folders = [file.parent.resolve() for file in root.glob(f"[!.]*/{VERSION_FILE}")]
    found = [(read_version(f).step, f) for f in folders if root in f.parents]
    if not found:
        raise InputError(f"new weights: {root} holds no snapshot, no folder with {VERSION_FILE}")
    return max(found)[1]


def _read(path: Path) -> ImportedModel:
    if _is_foreign(path):
        if (path / MANIFEST_FILE).is_file():  # our own exports have one
            verify_manifest(path)
        return read_hf(path)
    config = read_model_config(path)
    verify_model_dir(path)
    return ImportedModel(config, load_file(path / WEIGHTS_FILE), path)


def _is_foreign(path: Path) -> bool:
    """Whether config.json is another library's; what is none of both is ours to complain about."""
    try:
        fields = json.loads((path / CONFIG_FILE).read_bytes())
        return "architectures" in fields and fields.get("format") != FORMAT["format"]
    except (OSError, ValueError, TypeError):
        return False
