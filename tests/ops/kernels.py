"""Run compiled operators at each instruction set and thread count, and put both back."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import paddle
import pytest

from paddle_ernie.ops import library

PORTABLE, AVX2, AVX512 = 0, 1, 2


def _runtime(threads: int = 0, level: int = -1) -> list[int]:
    return library.call("runtime", paddle.zeros([1]), threads, level).tolist()


@contextmanager
def running(*, threads: int = 0, level: int = -1) -> Iterator[None]:
    """0 threads and level -1 leave what is set. Skips the test if the processor lacks the level."""
    assert library.loaded()
    old_threads, old_level, best = _runtime()
    if level > best:
        pytest.skip(f"this processor lacks {library.ISA_NAMES[level]}")
    _runtime(threads, level)
    try:
        yield
    finally:
        _runtime(old_threads, old_level)


def same_bits(a: paddle.Tensor, b: paddle.Tensor) -> bool:
    """Equal shapes and bytes (NaN equals itself, 0 does not equal -0)."""
    return a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def tensors(*arrays: np.ndarray) -> list[paddle.Tensor]:
    """fp32 tensors that want gradients."""
    return [paddle.to_tensor(array.astype(np.float32), stop_gradient=False) for array in arrays]


def value_and_gradients(operator, arrays, cotangents, dtype: str) -> list[np.ndarray]:
    """Outputs, then the gradient of each input, computed in `dtype`.

    In float64 that is the operator's plain body, which the finite differences of
    `check_operator` check.
    """
    inputs = [paddle.to_tensor(array.astype(dtype), stop_gradient=False) for array in arrays]
    results = operator(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    weights = [paddle.to_tensor(cotangent.astype(dtype)) for cotangent in cotangents]
    paddle.autograd.backward(list(results), weights)
    return [tensor.numpy() for tensor in results] + [x.grad.numpy() for x in inputs]
