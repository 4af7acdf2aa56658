"""Tensors as NumPy arrays without a copy, where the device allows it. Used all over `train/`."""

from collections.abc import Iterable

import numpy as np
import paddle

NORM_CHUNK = 1 << 16  # elements per fp32 dot product; chunks are added in fp64 (see sum_of_squares)


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """The values of `tensor`: its own memory on a CPU, a copy on other devices.

    A view is only valid until the tensor is updated or freed.
    """
    tensor = tensor.detach()
    if tensor.place.is_cpu_place():
        return np.from_dlpack(tensor)
    return tensor.numpy()


def sum_of_squares(arrays: Iterable[np.ndarray]) -> float:
    """Sum of all squares, accumulated in fp64 over short fp32 dot products.

    `paddle.dot` and `paddle.linalg.norm` add fp32 terms one after the other and are wrong by 1.5 %
    at ten million elements; short chunks also make the result independent of the thread count.
    """
    total = 0.0
    for array in arrays:
        flat = array.reshape(-1)
        for start in range(0, flat.size, NORM_CHUNK):
            chunk = flat[start : start + NORM_CHUNK]
            total += float(np.dot(chunk, chunk))
    return total
