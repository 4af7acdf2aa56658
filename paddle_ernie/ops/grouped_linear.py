"""Linear maps of many experts over tokens sorted by expert. Called by the MoE layer.

    x [N, I], sorted:  | expert 0 | expert 2      | expert 5 |      counts [E] = 3 0 5 0 0 3
    weight [E, I, O]      @ W[0]     @ W[2]          @ W[5]     ->  y [N, O]

Only experts with tokens are visited, in both directions. The gradient of the stack is written
into one buffer: slicing the stack under autograd would zero-fill all of it for every expert.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops.arrays import empty, tensor, view, wanted


def grouped_linear(
    x_NI: paddle.Tensor, counts_E: np.ndarray, weight_EIO: paddle.Tensor
) -> paddle.Tensor:
    """Row n of expert e's group times weight[e]; `counts_E` are the group sizes, in order."""
    return _GroupedLinear.apply(x_NI, weight_EIO, counts_E)


def _groups(counts_E: np.ndarray) -> list[tuple[int, slice]]:
    """(expert, its rows) of the experts that have any."""
    stops = np.cumsum(counts_E)
    return [
        (int(expert), slice(int(stops[expert] - counts_E[expert]), int(stops[expert])))
        for expert in np.flatnonzero(counts_E)
    ]


def _multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray, **flags: bool) -> None:
    """out = a @ b by Paddle. The copy into `out` costs less than concatenating at the end."""
    out[...] = view(paddle.matmul(tensor(a), tensor(b), **flags))


class _GroupedLinear(PyLayer):
    @staticmethod
    def forward(ctx, x_NI, weight_EIO, counts_E):
        y_NO = empty((x_NI.shape[0], weight_EIO.shape[2]), x_NI)
        x, weight, y = view(x_NI), view(weight_EIO), view(y_NO)
        ctx.groups = _groups(counts_E)
        for expert, rows in ctx.groups:
            _multiply(x[rows], weight[expert], y[rows])
        ctx.save_for_backward(x_NI, weight_EIO)
        ctx.wanted = wanted(x_NI, weight_EIO)
        return y_NO

    @staticmethod
    def backward(ctx, dy_NO):
        x_NI, weight_EIO = ctx.saved_tensor()
        x, weight, dy = view(x_NI), view(weight_EIO), view(dy_NO)
        dx_NI = dweight_EIO = None
        if ctx.wanted[0]:
            dx_NI = empty(x_NI.shape, x_NI)
            dx = view(dx_NI)
            for expert, rows in ctx.groups:
                _multiply(dy[rows], weight[expert], dx[rows], transpose_y=True)
        if ctx.wanted[1]:
            dweight_EIO = empty(weight_EIO.shape, weight_EIO)
            dweight, idle = view(dweight_EIO), np.ones(len(weight), bool)
            for expert, rows in ctx.groups:
                _multiply(x[rows], dy[rows], dweight[expert], transpose_x=True)
                idle[expert] = False
            dweight[idle] = 0
        return dx_NI, dweight_EIO
