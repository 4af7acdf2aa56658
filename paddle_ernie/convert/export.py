"""Write a model as a directory that FastDeploy, transformers and PaddleFormers read.

    model directory, mapped --iterate_hf | iterate_paddle--> tensors, one by one
        --encode: bf16 | fp32 | FP8 codes and scales--> model-0000x-of-0000y.safetensors + index
    config.json  generation_config.json  tokenizer files  manifest.json
    mtp/         the prediction block once more, as FastDeploy's draft model (speculative decoding)

The directory appears whole or not at all, and no more than one tensor is in memory at a time.
Called by tools/export.py. The prediction block is fed here as in training, with hidden states
before the last norm; FastDeploy feeds its drafts those after it, of this model as of Baidu's own.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.fp8_files import (
    PADDLE_NAMES,
    TORCH_NAMES,
    encode,
    fp8_specs,
    is_quantised,
)
from paddle_ernie.convert.hf_config import TargetFormat, to_public_config
from paddle_ernie.convert.hf_files import (
    BF16,
    FP32,
    Spec,
    TensorFiles,
    round_to_bf16,
    write_sharded,
)
from paddle_ernie.convert.paddle_layout import iterate_draft, iterate_paddle
from paddle_ernie.convert.shapes import hollow
from paddle_ernie.convert.special_ids import TEMPLATE_FILE, SpecialIds, read_special_ids
from paddle_ernie.models.hf_names import BIAS, GATE, iterate_hf
from paddle_ernie.models.model_dir import WEIGHTS_FILE, read_model_config, verify_model_dir
from paddle_ernie.ops.quantise import BLOCK
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import directory_atomic, write_json
from paddle_ernie.utils.manifest import MANIFEST_FILE, write_manifest

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
DRAFT_FOLDER = "mtp"
SENTENCEPIECE = "tokenizer.model"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
OPTIONAL_FILES = (SENTENCEPIECE, "special_tokens_map.json", "added_tokens.json", TEMPLATE_FILE)
STORED_TYPES = {"bfloat16": BF16, "float32": FP32}

Tensors = Iterable[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    tensors: int
    nbytes: int
    """Of the main model's tensors."""
    files: int
    notes: tuple[str, ...]
    """What some reader will not do with this model."""


def export_model(
    source: Path, output: Path, target: TargetFormat, *, max_shard_bytes: int
) -> ExportReport:
    """Write `source`, a model directory, to `output`, which is replaced if it was an export."""
    check_output(output)
    config = read_model_config(source)
    verify_model_dir(source)
    ids = read_special_ids(source)
    arrays = own_arrays(source)
    with directory_atomic(output) as folder:
        write_json(folder / CONFIG_FILE, to_public_config(config, ids, target))
        write_json(folder / GENERATION_FILE, generation_config(ids))
        _copy_tokenizer(source, folder)
        specs = _write_tensors(
            folder, lambda: main_tensors(arrays, config, target), target, max_shard_bytes
        )
        if config.num_nextn_predict_layers:
            _write_draft(folder / DRAFT_FOLDER, arrays, config, ids, target, max_shard_bytes)
        write_manifest(folder)
        files = sum(path.is_file() for path in folder.rglob("*"))
    nbytes = sum(spec.nbytes for spec in specs)
    return ExportReport(len(specs), nbytes, files, notes_on(source, config, target))


def check_output(output: Path) -> None:
    """An existing folder is replaced only if it has a manifest, as every folder of ours."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: a file; expected a folder to write an export to")
    if output.exists() and any(output.iterdir()) and not (output / MANIFEST_FILE).exists():
        raise InputError(f"{output}: holds files that are not an export; give a new folder")


def own_arrays(source: Path) -> Mapping[str, np.ndarray]:
    """The fp32 arrays of a model directory, read from the file as they are used."""
    return TensorFiles(Path(source) / WEIGHTS_FILE)


def main_tensors(
    arrays: Mapping[str, np.ndarray], config: ModelConfig, target: TargetFormat
) -> Iterator[tuple[str, np.ndarray]]:
    """fp32 tensors of the main directory under their public names."""
    both = iterate_paddle if target.paddle_layout else iterate_hf
    # Readers of dense models know no prediction block: theirs is in the draft's folder only.
    keep_mtp = bool(config.moe_layers)
    return (
        (name, array) for name, array in both(arrays, config) if keep_mtp or ".mtp_" not in name
    )


def draft_tensors(
    arrays: Mapping[str, np.ndarray], config: ModelConfig, target: TargetFormat
) -> Iterator[tuple[str, np.ndarray]]:
    """fp32 tensors of the draft's folder."""
    return iterate_draft(arrays, config, transposed=not target.paddle_layout)


def generation_config(ids: SpecialIds) -> dict[str, object]:
    """Sampling as the model was trained: from its distribution, up to either end token."""
    return {
        "bos_token_id": ids.bos,
        "eos_token_id": list(ids.eos),
        "pad_token_id": ids.pad,
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 1.0,
    }


def notes_on(source: Path, config: ModelConfig, target: TargetFormat) -> tuple[str, ...]:
    """What a user should know before the directory goes to another engine."""
    notes = []
    if not (source / SENTENCEPIECE).is_file():
        notes.append(
            f"no {SENTENCEPIECE}: FastDeploy tokenises for ERNIE models with SentencePiece only: "
            "it needs a folder with one and requests with prompt_token_ids; others read "
            "tokenizer.json"
        )
    if config.num_nextn_predict_layers and config.moe_layers and not config.moe_layer_start_index:
        notes.append(
            "moe_layer_start_index is 0: FastDeploy would take the prediction block, which is "
            "dense, for a MoE layer; serve without the draft in mtp/"
        )
    if target.fp8 and (names := unaligned(config, target)):
        notes.append(
            f"FP8 blocks of {', '.join(names)} lie elsewhere than in our server, which keeps them "
            f"in one matrix: their widths are no multiples of {BLOCK}, so codes differ from the "
            "server's, and FastDeploy cannot fuse them"
        )
    if target.fp8 and (widths := partial_blocks(config)):
        notes.append(
            f"widths {', '.join(map(str, widths))} of FP8 matrices are no multiples of {BLOCK}: "
            "transformers misplaces the scales of such matrices where it has to dequantise them "
            "(without a GPU); export bf16 for it"
        )
    return tuple(notes)


def unaligned(config: ModelConfig, target: TargetFormat) -> list[str]:
    """Fused matrices whose parts do not begin where an FP8 block does."""
    if target.paddle_layout:
        return []
    head = config.dim_per_head
    fused = {"q/k/v": (config.num_attention_heads * head, config.num_key_value_heads * head)}
    if len(config.moe_layers) < config.num_hidden_layers or config.num_nextn_predict_layers:
        fused["dense gate/up"] = (config.intermediate_size,)
    if config.moe_layers:
        fused["expert gate/up"] = (config.moe_intermediate_size,)
        if config.moe_num_shared_experts > 1:
            shared = config.moe_intermediate_size * config.moe_num_shared_experts
            fused["shared gate/up"] = (shared,)
    return [name for name, widths in fused.items() if any(width % BLOCK for width in widths)]


def partial_blocks(config: ModelConfig) -> list[int]:
    """Widths of quantised matrices that end within a block, one-block matrices aside."""
    sizes = {
        size
        for name, array in iterate_hf(hollow(config), config)
        if is_quantised(name)
        for size in array.shape
    }
    return sorted(size for size in sizes if size > BLOCK and size % BLOCK)


def stored_type(name: str, target: TargetFormat) -> str:
    """fp32 for the router whatever the rest is: rounded scores flip choices."""
    return FP32 if name.endswith((GATE, BIAS)) else STORED_TYPES[target.dtype]


def _specs(name: str, shape: tuple[int, ...], target: TargetFormat) -> tuple[Spec, ...]:
    if target.fp8 and is_quantised(name):
        return fp8_specs(name, shape, PADDLE_NAMES if target.paddle_layout else TORCH_NAMES)
    return (Spec(name, stored_type(name, target), shape),)


def encoded(tensors: Tensors, target: TargetFormat) -> Iterator[tuple[Spec, np.ndarray]]:
    """What the files hold of fp32 tensors, in the same order."""
    for name, array in tensors:
        specs = _specs(name, array.shape, target)
        if len(specs) == 2:
            stored = encode(array, power_of_two=target.power_of_two_scales)
        else:
            own = np.ascontiguousarray(array)
            stored = (round_to_bf16(own) if specs[0].dtype == BF16 else own,)
        yield from zip(specs, stored, strict=True)


def _write_draft(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    ids: SpecialIds,
    target: TargetFormat,
    max_shard_bytes: int,
) -> None:
    folder.mkdir()
    write_json(folder / CONFIG_FILE, to_public_config(config, ids, target, draft=True))
    _write_tensors(folder, lambda: draft_tensors(arrays, config, target), target, max_shard_bytes)


def _write_tensors(
    folder: Path, tensors: Callable[[], Tensors], target: TargetFormat, max_shard_bytes: int
) -> list[Spec]:
    """Twice through `tensors`: for their shapes, which reads nothing, and for their values."""
    specs = [spec for name, array in tensors() for spec in _specs(name, array.shape, target)]
    framework = "np" if target.paddle_layout else "pt"
    write_sharded(folder, specs, encoded(tensors(), target), max_shard_bytes, framework)
    return specs


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for name in (*TOKENIZER_FILES, *OPTIONAL_FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
