"""Routes in files, as FastDeploy's local store has them. Called by the server; trainers read them.

    <folder>/<rollout id>/layer_<i>.pdtensor       [max_model_len, k], one per MoE layer
    <folder>/<rollout id>/<rollout id>.pdtensor    [MoE layers, max_model_len, k], if fused

Rows from a sequence's last token on hold no record: 255 in uint8 or, from 256 experts on, -1 in
int32, for Paddle has no wider unsigned types. A rollout's folder is whole or absent. Reading needs
neither Paddle nor trust: nothing but arrays is unpickled.
"""

import io
import pickle
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddle_ernie.serve.routes import dtype_of, no_route, rollout_id
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import replace_directory

SUFFIX = ".pdtensor"
MAX_NAME_BYTES = 240  # with the suffix, below the 255 of common file systems
_WORKING = ".writing-"
_NOT_A_PICKLE = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError,
    OverflowError, MemoryError, SyntaxError, RuntimeError, SystemError,
)  # fmt: skip
"""What unpickling other bytes raises."""


class StoreFormat(NamedTuple):
    """What all rollouts of a store have in common."""

    layers: int
    top_k: int
    num_experts: int
    max_model_len: int
    fused: bool = False


def clear_store(folder: Path) -> None:
    """Make the folder, and remove the rollouts that an earlier server left in it.

    For the start of a server, before the first of its processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for child in _rollouts(folder):
        shutil.rmtree(child)


class RouteStore:
    """Writes the routes of finished requests, from any thread and process; the last of a name
    stays.
    """

    def __init__(self, folder: Path, format: StoreFormat, *, only_last_turn: bool = False) -> None:
        """`only_last_turn`: <prefix>:<turn>:<segment> replaces the rollout of the turn before."""
        self._folder = folder
        self._format = format
        self._only_last_turn = only_last_turn
        self._replacing = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, request_id: str, routes_TLK: np.ndarray) -> Path:
        """Write what a request ran; its rollout's folder. `routes_TLK` as in RequestOutput."""
        form = self._format
        if (
            routes_TLK.shape[1:] != (form.layers, form.top_k)
            or len(routes_TLK) > form.max_model_len
        ):
            raise InputError(
                f"routes of {request_id}: {list(routes_TLK.shape)}; expected at most "
                f"[{form.max_model_len}, {form.layers}, {form.top_k}]"
            )
        name = rollout_id(request_id)
        target = _rollout_folder(self._folder, name)
        working = Path(tempfile.mkdtemp(prefix=_WORKING, dir=self._folder))
        try:
            self._write(working, name, _padded(routes_TLK, form))
            working.chmod(0o755)
            with self._replacing:
                replace_directory(working, target)
        except BaseException:
            shutil.rmtree(working, ignore_errors=True)
            raise
        if self._only_last_turn:
            self._remove_turn_before(name)
        return target

    def _write(self, folder: Path, name: str, padded_LNK: np.ndarray) -> None:
        import paddle  # here: readers do without it

        if self._format.fused:
            paddle.save(paddle.to_tensor(padded_LNK, place="cpu"), str(folder / f"{name}{SUFFIX}"))
            return
        for layer, routes_NK in enumerate(padded_LNK):
            path = folder / _layer_file(layer)
            paddle.save(paddle.to_tensor(routes_NK, place="cpu"), str(path))

    def _remove_turn_before(self, name: str) -> None:
        prefix, turn, segment = name.rsplit(":", 2) if name.count(":") >= 2 else ("", "", "")
        if turn.isdecimal() and int(turn) > 0:
            before = _rollout_folder(self._folder, f"{prefix}:{int(turn) - 1}:{segment}")
            shutil.rmtree(before, ignore_errors=True)


def read_rollout(folder: Path, name: str, *, tokens: int, num_experts: int) -> np.ndarray:
    """Routes [tokens - 1, layers, k] of a sequence of `tokens` tokens, ours or FastDeploy's.

    The type is the one of `num_experts`; `routes.check` compares the rest with a model.
    """
    rollout = _rollout_folder(folder, name)
    fused = rollout / f"{name}{SUFFIX}"
    if fused.is_file():
        stored = _read_array(fused, 3)
    else:
        count = len([*rollout.glob(f"layer_*{SUFFIX}")])
        if not count:
            raise InputError(
                f"{rollout}: no routes; expected {fused.name} or {_layer_file(0)} and so on: has "
                "the request ended, and is this the server's local_store_dir?"
            )
        layers = [_read_array(rollout / _layer_file(layer), 2) for layer in range(count)]
        if len({layer.shape for layer in layers}) > 1:
            shapes = [list(layer.shape) for layer in layers]
            raise InputError(f"{rollout}: layers of shapes {shapes}; expected equal ones")
        stored = np.stack(layers)
    if stored.shape[1] < tokens - 1:
        raise InputError(
            f"{rollout}: {stored.shape[1]} rows; expected {tokens - 1} or more, for {tokens} tokens"
        )
    return _unsigned(stored[:, : max(tokens - 1, 0)].transpose(1, 0, 2), num_experts, rollout)


def _padded(routes_TLK: np.ndarray, form: StoreFormat) -> np.ndarray:
    """[layers, max_model_len, k] in a type that Paddle has."""
    fill = no_route(dtype_of(form.num_experts))
    shape = (form.layers, form.max_model_len, form.top_k)
    if dtype_of(form.num_experts) == np.uint8:
        padded = np.full(shape, fill, np.uint8)
        padded[:, : len(routes_TLK)] = routes_TLK.transpose(1, 0, 2)
        return padded
    padded = np.full(shape, -1, np.int32)
    signed = np.where(routes_TLK == fill, -1, routes_TLK.astype(np.int64))
    padded[:, : len(routes_TLK)] = signed.transpose(1, 0, 2)
    return padded


def _unsigned(stored: np.ndarray, num_experts: int, where: Path) -> np.ndarray:
    dtype = dtype_of(num_experts)
    absent = stored == (-1 if stored.dtype.kind == "i" else no_route(stored.dtype))
    outside = ~absent & ((stored < 0) | (stored >= num_experts))
    for token, layer, rank in np.argwhere(outside)[:1]:
        raise InputError(
            f"{where}: token {token}, MoE layer {layer} has expert {stored[token, layer, rank]}; "
            f"expected 0 to {num_experts - 1}: was it served from this model?"
        )
    return np.where(absent, no_route(dtype), stored).astype(dtype)


def _rollout_folder(folder: Path, name: str) -> Path:
    """Directly inside `folder`, whatever a client put into the name."""
    bad = (
        name.startswith(".")
        or any(character in "/\\" or not character.isprintable() for character in name)
        or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME_BYTES
    )
    if bad:
        raise InputError(
            f"rollout id {name[:80]!r} cannot name a folder; expected 1 to {MAX_NAME_BYTES} bytes "
            "of printable characters without slashes, not beginning with a dot"
        )
    return folder / name


def _rollouts(folder: Path) -> list[Path]:
    """Folders that a store may remove; InputError if there is anything else."""
    children = sorted(folder.iterdir())
    for child in children:
        own = child.is_dir() and not child.is_symlink()
        if not own or any(not _is_own(file) for file in child.rglob("*")):
            raise InputError(
                f"{folder}: has {child.name}, which is no rollout; expected an empty folder or an "
                "earlier server's, whose rollouts are removed: choose another local_store_dir"
            )
    return children


def _is_own(path: Path) -> bool:
    return path.suffix == SUFFIX or (path.is_dir() and not path.is_symlink())


def _layer_file(layer: int) -> str:
    return f"layer_{layer}{SUFFIX}"


def _read_array(path: Path, axes: int) -> np.ndarray:
    """An array that paddle.save wrote: as a pair of a name and the array, or by itself."""
    try:
        value = _ArrayUnpickler(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise InputError(f"{path}: not there; expected one file for every MoE layer") from None
    except _NOT_A_PICKLE as error:
        raise InputError(f"{path}: not an array of paddle.save ({error})") from None
    array = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not isinstance(array, np.ndarray) or array.ndim != axes or array.dtype.kind not in "iu":
        found = (
            f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "no array"
        )
        raise InputError(f"{path}: {found}; expected integers with {axes} axes")
    return array


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and tuples, and calls nothing else: a pickle can name any function."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]
        known = {
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "_reconstruct": reconstruct,
            "tuple": tuple,
        }
        if name in known and module in {
            "builtins", "numpy", "numpy.core.multiarray", "numpy._core.multiarray",
        }:  # fmt: skip
            return known[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}")
