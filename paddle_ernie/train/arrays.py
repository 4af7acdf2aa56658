"""Tensors as NumPy arrays without a copy, where the device allows it. Used all over `train/`."""

import numpy as np
import paddle


def host_view(tensor: paddle.Tensor) -> np.ndarray:
    """The values of `tensor`: its own memory on a CPU, a copy on other devices.

    A view is only valid until the tensor is updated or freed.
    """
    tensor = tensor.detach()
    if tensor.place.is_cpu_place():
        return np.from_dlpack(tensor)
    return tensor.numpy()
