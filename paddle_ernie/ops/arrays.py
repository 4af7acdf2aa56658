"""Numpy views of Paddle tensors, without copies; every operator's CPU body works on them.

Why numpy inside Paddle operators: Paddle's CPU build runs exp, SiLU, softmax and masked writes as
scalar loops and allocates a result for each; numpy's vectorised functions with `out=` on a chunk
that stays in the L2 cache are two to ten times faster. Products stay with Paddle (MKL): numpy's
BLAS has a thread pool of its own, and the two fight for the cores when they alternate.
"""

from collections.abc import Iterator

import numpy as np
import paddle

CACHE_BYTES = 1 << 19
"""What one chunk of an elementwise pass may touch: half a megabyte fits the L2 of current cores."""

_TYPE_CODES = {
    paddle.float32: "<f4",
    paddle.float64: "<f8",
    paddle.int64: "<i8",
    paddle.int32: "<i4",
    paddle.uint8: "|u1",
}


class _Memory:
    """Numpy's array interface over a tensor's memory; keeps the tensor alive as the array's base.

    DLPack would do for reading, but numpy marks such arrays read-only, and `.numpy()` copies.
    """

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: paddle.Tensor) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": _TYPE_CODES[tensor.dtype],
            "version": 3,
        }


def view(tensor: paddle.Tensor) -> np.ndarray:
    """The tensor's memory as a writable array (a copy only if the tensor is not contiguous).

    Writing is for the operator that has just allocated the tensor.
    """
    if 0 in tensor.shape:  # an empty tensor has no address
        return np.empty(tensor.shape, np.dtype(_TYPE_CODES[tensor.dtype]))
    return np.asarray(_Memory(contiguous(tensor)))


def contiguous(tensor: paddle.Tensor) -> paddle.Tensor:
    """The tensor itself, or a copy if it is a view: kernels read rows one after the other."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def tensor(array: np.ndarray) -> paddle.Tensor:
    """The array's memory as a tensor, without a copy. `array` must be contiguous."""
    if array.size == 0:
        return paddle.empty(list(array.shape), dtype=str(array.dtype))
    return paddle.utils.dlpack.from_dlpack(array)


def empty(shape: tuple[int, ...], like: paddle.Tensor) -> paddle.Tensor:
    """An uninitialised tensor of `like`'s type. Paddle's memory is page-aligned, numpy's is not."""
    return paddle.empty(list(shape), dtype=like.dtype)


def wanted(*tensors: paddle.Tensor) -> tuple[bool, ...]:
    """Which inputs need a gradient. Paddle demands None from a PyLayer for the others."""
    return tuple(not tensor.stop_gradient for tensor in tensors)


def row_chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Consecutive slices of `rows` rows, each touching about CACHE_BYTES."""
    step = max(1, CACHE_BYTES // max(row_bytes, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
