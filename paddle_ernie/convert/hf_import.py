"""Read a public ERNIE 4.5 checkpoint, dense or MoE, into our layout.

    config.json --> ModelConfig --hollow arrays--> names and shapes that must be there
    tensors: torch or -Paddle layout, fp32, fp16, bf16 or block-wise FP8 --> our fp32 arrays

Reads what we export, what Baidu publishes, and what transformers and PaddleFormers save. A tensor
that is missing, left over or of another shape is an error that names it, before any is read.
Called by tools/import_model.py and by the check of an export.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.fp8_files import WeightValues
from paddle_ernie.convert.hf_config import check_quantisation, from_public_config
from paddle_ernie.convert.hf_files import INDEX_FILE, TensorFiles
from paddle_ernie.convert.paddle_layout import (
    PREFIX,
    from_draft,
    from_paddle,
    iterate_draft,
    iterate_paddle,
)
from paddle_ernie.convert.shapes import hollow
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.models.hf_names import from_hf, iterate_hf
from paddle_ernie.utils.errors import InputError

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
DRAFT_FOLDER = "mtp"
HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
RENAMED = (".mlp.gate.moe_statics.", ".mlp.moe_statics.")  # transformers saves the first
IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")  # follows from rope_theta
MTP_BLOCK = ".mtp_block.0."

Shapes = dict[str, tuple[int, ...]]


def read_hf(path: Path) -> ImportedModel:
    """The whole model in memory, with notes on what was left out or cannot be reproduced."""
    path = Path(path)
    where = str(path / CONFIG_FILE)
    fields = _read_config(path / CONFIG_FILE)
    check_quantisation(fields, where)
    weights = WeightValues(TensorFiles(path))
    tensors = _Tensors(weights)
    config = from_public_config(
        fields, where, tied=HEAD not in tensors, mtp=int(any(MTP_BLOCK in name for name in tensors))
    )
    paddle = f"{PREFIX}.{EMBEDDING}" in tensors
    if config.tie_word_embeddings:
        tensors.drop_tied_head(path, f"{PREFIX if paddle else 'model'}.{EMBEDDING}")
    iterate, read = (iterate_paddle, from_paddle) if paddle else (iterate_hf, from_hf)
    expected = {name: array.shape for name, array in iterate(hollow(config), config)}
    check_tensors(path, expected, tensors.shapes())
    arrays = read(tensors, config)
    if (path / DRAFT_FOLDER / INDEX_FILE).is_file() and not config.num_nextn_predict_layers:
        config = config.model_copy(update={"num_nextn_predict_layers": 1})
        arrays |= _read_draft(path / DRAFT_FOLDER, config, transposed=not paddle)
    notes = _notes(fields, config, weights)
    tokenizer = path if (path / TOKENIZER_FILE).is_file() else None
    return ImportedModel(config, arrays, tokenizer, notes)


def check_tensors(path: Path, expected: Shapes, found: Shapes) -> None:
    """Raise InputError naming tensors that are missing, unknown or of another shape."""
    faults = [f"{name}: missing" for name in expected if name not in found]
    faults += [
        f"{name}: unknown, the model has no such tensor" for name in found if name not in expected
    ]
    faults += [
        f"{name}: shape {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if faults:
        raise InputError(
            f"{path}: {len(faults)} tensors do not fit the model of its {CONFIG_FILE}:\n  "
            + "\n  ".join(sorted(faults))
        )


class _Tensors(Mapping[str, np.ndarray]):
    """fp32 values under the names of public checkpoints, read when they are asked for."""

    def __init__(self, weights: WeightValues) -> None:
        self._weights = weights
        self._stored = {
            name.replace(*RENAMED): name for name in weights if not IGNORED.search(name)
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._weights[self._stored[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def shapes(self) -> Shapes:
        return {name: self._weights.shape(stored) for name, stored in self._stored.items()}

    def drop_tied_head(self, path: Path, embedding: str) -> None:
        """Some write the shared matrix twice; two matrices are not a tied model."""
        if HEAD not in self or embedding not in self:
            return
        head, table = self[HEAD], self[embedding]
        if not any(np.array_equal(head, other) for other in (table, table.T)):
            raise InputError(
                f"{path}: {HEAD} differs from {embedding}, but tie_word_embeddings is true; set it "
                f"to false in {CONFIG_FILE}, or remove the one that was not trained"
            )
        del self._stored[HEAD]


def _read_draft(folder: Path, config: ModelConfig, *, transposed: bool) -> dict[str, np.ndarray]:
    """The prediction block of a dense model, which only the draft's folder holds."""
    tensors = _Tensors(WeightValues(TensorFiles(folder)))
    draft = iterate_draft(hollow(config), config, transposed=transposed)
    check_tensors(folder, {name: array.shape for name, array in draft}, tensors.shapes())
    return from_draft(tensors, transposed=transposed)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a folder with a public checkpoint")
    try:
        fields = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(fields).__name__}")
    if fields.get("format") == "paddle_ernie":
        raise InputError(f"{path}: already a model directory of ours; there is nothing to import")
    return fields


def _notes(fields: dict[str, Any], config: ModelConfig, weights: WeightValues) -> tuple[str, ...]:
    notes = []
    if fields.get("num_nextn_predict_layers") and not config.num_nextn_predict_layers:
        notes.append(
            f"{CONFIG_FILE} announces a prediction block, the weights have none; read without"
        )
    if changed := weights.changed(power_of_two=False):
        notes.append(
            "FP8 scales are powers of two: serve or export as FP8 with ue8m0 scales to keep them"
            if not weights.changed(power_of_two=True)
            else f"{changed} of {len(weights.quantised)} FP8 matrices have scales of another rule "
            "than max / 448; they are read exactly, but FP8 serving or export rounds them anew"
        )
    return tuple(notes)
