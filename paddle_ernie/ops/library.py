"""The compiled operators: loaded at first use, called by name.

    operator(x) -> available(x)? yes -> call("swiglu_forward", x)     csrc/cpu
                                 no  -> the operator's plain Paddle and NumPy body

The plain body runs without a compiler (one warning says so), for other dtypes (gradient checks in
float64), and for tensors on a GPU: what runs there today is Paddle's own kernels. `csrc/cuda` holds
FP8 quantisation and products for Hopper; they compile, and nothing calls them yet.

Environment, read once at first use:

    PADDLE_ERNIE_OPS    auto (default); off: plain bodies; on: an error instead of the warning
    PADDLE_ERNIE_ISA    the highest instruction set to use; default: the best of this processor
    OMP_NUM_THREADS     threads (see utils/threads); results do not depend on it
"""

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.base import core

from paddle_ernie.ops.build import build, build_id
from paddle_ernie.ops.compiler import CannotBuildError
from paddle_ernie.utils.errors import InputError

logger = logging.getLogger(__name__)

ISA_NAMES = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
"""In rising order, as in csrc/cpu/isa.h; bits of results may differ between them."""
MODES = ("auto", "on", "off")
KEEP = -1  # an argument of the runtime operator that changes nothing


class Runtime(NamedTuple):
    """What the library says of itself."""

    threads: int
    level: int
    best_level: int


def available(x: paddle.Tensor) -> bool:
    """Whether the kernels can take this tensor: float32, in CPU memory, library loaded."""
    return x.dtype == paddle.float32 and x.place.is_cpu_place() and loaded()


def call(name: str, *arguments: Any) -> Any:
    """Run operator `pe_<name>`: tensors in the order of its inputs, then its attributes.

    One output comes back as a tensor, several as a list.
    """
    results = core.eager._run_custom_op(f"pe_{name}", *arguments)
    return results[0] if len(results) == 1 else results


def c_function(name: str, argument_types: list[Any]) -> Any:
    """`pe_<name>` of the loaded library as a C function, which returns None or an error's text.

    For what is called every few hundred microseconds: an operator costs 20 us more for each tensor
    that Paddle has not seen before. Releases Python's lock.
    """
    function = getattr(ctypes.CDLL(str(library_path())), f"pe_{name}")
    function.argtypes, function.restype = argument_types, ctypes.c_char_p
    return function


def address(array: np.ndarray) -> int:
    """Where its first element lies."""
    return array.__array_interface__["data"][0]


def loaded() -> bool:
    """Whether the library is there; builds it if need be, once per process."""
    return library_path() is not None


@cache
def library_path() -> Path | None:
    """The loaded library's file; None where the plain bodies run."""
    mode, level = _mode(os.environ), _level_cap(os.environ)
    if mode == "off":
        return None
    try:
        path = build()
    except CannotBuildError as error:
        if mode == "on":
            raise
        logger.warning(
            "operators run as plain NumPy code, several times slower, and FP8 and bf16 gain no "
            "speed: %s. PADDLE_ERNIE_OPS=off says that this is wanted",
            error,
        )
        return None
    core.load_op_meta_info_and_register_op(str(path))
    best = _runtime().best_level
    _runtime(level=min(level, best))
    return path


def threads() -> int:
    """Threads of the next operator."""
    return _runtime().threads if loaded() else 1


def set_threads(count: int) -> None:
    """Use `count` threads from now on; what operators return stays the same."""
    if count < 1:
        raise InputError(f"operator threads: {count}; expected 1 or more")
    if loaded():
        _runtime(threads=count)


def isa() -> str:
    """The instruction set in use, one of ISA_NAMES; "reference" where the plain bodies run."""
    return ISA_NAMES[_runtime().level] if loaded() else "reference"


def set_isa(name: str) -> None:
    """Use this instruction set from now on; InputError if it is none or the processor lacks it."""
    level = _level(name, "instruction set")
    best = _runtime().best_level if loaded() else KEEP
    if level > best:
        has = f"up to {ISA_NAMES[best]}" if loaded() else "none: the operators are not compiled"
        raise InputError(f"instruction set {name}: this process has {has}; choose one of those")
    _runtime(level=level)


@contextmanager
def using(*, isa: str | None = None, threads: int | None = None) -> Iterator[None]:
    """Another instruction set or number of threads within a block; for tests and measurements."""
    before = _runtime() if loaded() else None
    try:
        if isa is not None:
            set_isa(isa)
        if threads is not None:
            set_threads(threads)
        yield
    finally:
        if before is not None:
            _runtime(before.threads, before.level)


def fingerprint(recipe: str) -> str:
    """Two processes with equal fingerprints compute equal bits from equal inputs.

    Trainer and server exchange it. `recipe` names the formats of the products.
    """
    path = library_path()
    code = build_id(path) if path else f"paddle-{paddle.__version__}"
    return f"{code}/{isa()}/{recipe}"


def _runtime(threads: int = KEEP, level: int = KEEP) -> Runtime:
    """Set what is not KEEP; what holds then."""
    unused = paddle.to_tensor([0.0], place=paddle.CPUPlace())
    return Runtime(*call("runtime", unused, threads, level).tolist())


def _mode(environment: Mapping[str, str]) -> str:
    mode = environment.get("PADDLE_ERNIE_OPS", "").lower() or "auto"
    if mode not in MODES:
        raise InputError(f"PADDLE_ERNIE_OPS {mode!r}: expected one of {', '.join(MODES)}")
    return mode


def _level_cap(environment: Mapping[str, str]) -> int:
    name = environment.get("PADDLE_ERNIE_ISA", "").lower() or ISA_NAMES[-1]
    return _level(name, "PADDLE_ERNIE_ISA")


def _level(name: str, what: str) -> int:
    if name not in ISA_NAMES:
        raise InputError(f"{what} {name!r}: expected one of {', '.join(ISA_NAMES)}")
    return ISA_NAMES.index(name)
