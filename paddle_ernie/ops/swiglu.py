"""SwiGLU: silu(gate) * up, with gate and up side by side in one tensor. Called by every MLP.

[T, 2F] = [ gate | up ]  ->  [T, F]
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, row_chunks, view
from paddle_ernie.ops.quantise import quantise_rows


def swiglu(gate_up_TF: paddle.Tensor) -> paddle.Tensor:
    """The activation; half as wide as its input. Keeps only the input for the backward pass."""
    return _SwiGLU.apply(gate_up_TF)


def swiglu_quantise(
    gate_up_TF: paddle.Tensor, *, power_of_two: bool = False
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """quantise_rows(swiglu(x)), the same bits without the activation in memory. No gradient."""
    if library.available(gate_up_TF):
        return tuple(library.call("swiglu_quantise", gate_up_TF, power_of_two))
    return quantise_rows(_forward(gate_up_TF), power_of_two=power_of_two)


class _SwiGLU(PyLayer):
    @staticmethod
    def forward(ctx, gate_up_TF):
        ctx.save_for_backward(gate_up_TF)
        if library.available(gate_up_TF):
            return library.call("swiglu_forward", gate_up_TF)
        return _forward(gate_up_TF)

    @staticmethod
    def backward(ctx, dy_TF):
        (gate_up_TF,) = ctx.saved_tensor()
        if library.available(gate_up_TF):
            return library.call("swiglu_backward", gate_up_TF, dy_TF)
        return _backward(gate_up_TF, dy_TF)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        result = np.exp(-x)
    result += 1
    return np.reciprocal(result, out=result)


def _forward(gate_up_TF: paddle.Tensor) -> paddle.Tensor:
    rows, width = gate_up_TF.shape[0], gate_up_TF.shape[1] // 2
    y_TF = empty((rows, width), gate_up_TF)
    x, y = view(gate_up_TF), view(y_TF)
    for chunk in row_chunks(rows, 4 * width * x.itemsize):
        gate, up = x[chunk, :width], x[chunk, width:]
        sigmoid = _sigmoid(gate)
        np.multiply(gate, sigmoid, out=sigmoid)
        np.multiply(sigmoid, up, out=y[chunk])
    return y_TF


def _backward(gate_up_TF: paddle.Tensor, dy_TF: paddle.Tensor) -> paddle.Tensor:
    """d silu(g) / dg = s + silu(g) * (1 - s), with s = sigmoid(g)."""
    dx_TF = empty(gate_up_TF.shape, gate_up_TF)
    x, dy, dx = view(gate_up_TF), view(dy_TF), view(dx_TF)
    rows, width = dy.shape
    for chunk in row_chunks(rows, 7 * width * x.itemsize):
        gate, up, dgate, dup = (
            array[chunk, half] for array in (x, dx) for half in (slice(width), slice(width, None))
        )
        sigmoid = _sigmoid(gate)
        silu = gate * sigmoid
        np.multiply(dy[chunk], silu, out=dup)
        np.subtract(1, sigmoid, out=dgate)
        dgate *= silu
        dgate += sigmoid
        dgate *= up
        dgate *= dy[chunk]
    return dx_TF
