"""A model directory: what one model is on disk. Imports Paddle only to build a model.

    <directory>/
        config.json            "format": "paddle_ernie", "version": 1, and the ModelConfig
        model.safetensors      parameters by name, correction biases among them
        tokenizer.json, tokenizer_config.json
        manifest.json          size and SHA-256 of each file

Written by training, extraction and import; read by every tool. A damaged file is refused by name.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.utils.errors import CheckpointError, InputError
from paddle_ernie.utils.files import directory_atomic, write_json
from paddle_ernie.utils.manifest import MANIFEST_FILE, verify_manifest, write_manifest

if TYPE_CHECKING:
    from paddle_ernie.models.model import ErnieMoeModel

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
FORMAT = {"format": "paddle_ernie", "version": 1}


def save_model_dir(
    path: Path,
    model_or_arrays: "ErnieMoeModel | Mapping[str, np.ndarray]",
    config: ModelConfig,
    tokenizer_dir: Path | None,
) -> None:
    """Write a whole model directory, replacing an older one, or on any error nothing."""
    if isinstance(model_or_arrays, Mapping):
        arrays = dict(model_or_arrays)
    else:
        arrays = model_arrays(model_or_arrays)
    with directory_atomic(Path(path)) as folder:
        write_config(folder, config)
        if tokenizer_dir is not None:
            copy_tokenizer(tokenizer_dir, folder)
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            folder / WEIGHTS_FILE,
        )
        write_manifest(folder)


def load_model_dir(path: Path) -> "ErnieMoeModel":
    """The model, after its files were checked."""
    from paddle_ernie.models.model import ErnieMoeModel

    config = read_model_config(path)
    verify_model_dir(path)
    model = ErnieMoeModel(config, seed=None)
    load_arrays(model, load_file(Path(path) / WEIGHTS_FILE))
    return model


def verify_model_dir(path: Path) -> None:
    """Raise CheckpointError naming the file that is missing, truncated or altered."""
    verify_manifest(Path(path), required=(CONFIG_FILE, WEIGHTS_FILE))


def read_model_config(path: Path) -> ModelConfig:
    """The ModelConfig in a model directory."""
    file = Path(path) / CONFIG_FILE
    if not file.is_file():
        if (Path(path) / MANIFEST_FILE).exists():
            raise CheckpointError(f"{file}: missing; {path} is not a whole model directory")
        found = "no such folder" if not Path(path).exists() else f"it has no {CONFIG_FILE}"
        inner = Path(path) / "model"  # where a run keeps its model
        advice = inner if (inner / CONFIG_FILE).is_file() else "a folder written by training"
        raise InputError(f"{path}: not a model directory: {found}; give {advice}")
    try:
        fields = json.loads(file.read_bytes())
        found = {key: fields.pop(key, None) for key in FORMAT}
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file}: not a JSON object ({error})") from error
    if found != FORMAT:
        raise InputError(
            f"{file}: format {found['format']!r} version {found['version']!r}, expected "
            f"{FORMAT['format']!r} version {FORMAT['version']}; import other formats first"
        )
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise CheckpointError(f"{file}: not a model configuration: {error}") from error


def write_config(directory: Path, config: ModelConfig) -> None:
    """Write config.json."""
    write_json(directory / CONFIG_FILE, {**FORMAT, **config.model_dump(mode="json")})


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the tokenizer's files; tokenizer_config.json may be absent."""
    for name in TOKENIZER_FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, directory / name)
    if not (directory / TOKENIZER_FILES[0]).is_file():
        raise InputError(f"{source}: no {TOKENIZER_FILES[0]}; give a folder with a tokenizer")


def model_arrays(model: "ErnieMoeModel") -> dict[str, np.ndarray]:
    """Name -> the parameter's own memory (copy it if training goes on)."""
    from paddle_ernie.ops.arrays import view

    return {name: view(tensor) for name, tensor in model.named_parameters()}


def load_arrays(model: "ErnieMoeModel", arrays: Mapping[str, np.ndarray]) -> None:
    """Copy `arrays` into the parameters; names and shapes must be exactly the model's."""
    own = model_arrays(model)
    faults = [f"{name}: missing" for name in own if name not in arrays]
    faults += [f"{name}: the model has no such parameter" for name in arrays if name not in own]
    faults += [
        f"{name}: {found.dtype}{list(found.shape)}, expected {array.dtype}{list(array.shape)}"
        for name, array in own.items()
        if (found := arrays.get(name)) is not None
        and (found.shape, found.dtype) != (array.shape, array.dtype)
    ]
    if faults:
        raise CheckpointError(
            "weights do not fit the model of this config.json:\n  " + "\n  ".join(sorted(faults))
        )
    for name, array in own.items():
        array[...] = arrays[name]
