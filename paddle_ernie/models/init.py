"""Create and initialise parameters. Called by the layers and by `ErnieMoeModel`."""

import zlib

import numpy as np
import paddle
from paddle.nn.initializer import Constant

from paddle_ernie.ops.arrays import view


def parameter(layer: paddle.nn.Layer, *shape: int, value: float = 0.0) -> paddle.Tensor:
    """An fp32 parameter of `layer` filled with `value`; `initialise` or a checkpoint fills it."""
    return layer.create_parameter(list(shape), dtype="float32", default_initializer=Constant(value))


def initialise(model: paddle.nn.Layer, *, deviation: float, seed: int) -> None:
    """Fill matrices from normal(0, deviation); vectors (norms, biases) keep what they are.

    Each parameter has a random stream of its own, keyed by seed and name, so that its values do
    not depend on the other parameters or on the order of construction.
    """
    for name, tensor in model.named_parameters():
        if tensor.ndim < 2:
            continue
        key = [seed, zlib.crc32(name.encode())]
        values = view(tensor)
        np.random.Generator(np.random.Philox(key=key)).standard_normal(dtype=np.float32, out=values)
        values *= np.float32(deviation)
