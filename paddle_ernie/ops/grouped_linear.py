"""Linear maps of many experts over tokens sorted by expert. Called by the MoE layer.

    x [N, I], sorted:  | expert 0 | expert 2      | expert 5 |      counts [E] = 3 0 5 0 0 3
    weight [E, I, O]      @ W[0]     @ W[2]          @ W[5]     ->  y [N, O]

Only experts with tokens are visited, in both directions. The gradient of the stack is written
into one buffer: slicing the stack under autograd would zero-fill all of it for every expert.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library, products
from paddle_ernie.ops.arrays import empty, tensor, view, wanted
from paddle_ernie.ops.numerics import Numerics


def grouped_linear(
    x_NI: paddle.Tensor,
    counts_E: np.ndarray,
    weight_EIO: paddle.Tensor,
    numerics: Numerics | None = None,
) -> paddle.Tensor:
    """Row n of expert e's group times weight[e]; `counts_E` are the group sizes, in order."""
    return _GroupedLinear.apply(x_NI, weight_EIO, counts_E, numerics or Numerics())


class _GroupedLinear(PyLayer):
    @staticmethod
    def forward(ctx, x_NI, weight_EIO, counts_E, numerics):
        ctx.save_for_backward(x_NI, weight_EIO)
        ctx.wanted = wanted(x_NI, weight_EIO)
        ctx.counts, ctx.numerics = np.ascontiguousarray(counts_E, np.int64), numerics
        if library.available(x_NI):
            return products.forward(x_NI, ctx.counts, weight_EIO, False, numerics)
        recipe = numerics.recipe
        return _by_group(
            x_NI, weight_EIO, ctx.counts, False, recipe.forward, recipe.power_of_two_scales
        )

    @staticmethod
    def backward(ctx, dy_NO):
        x_NI, weight_EIO = ctx.saved_tensor()
        counts, recipe = ctx.counts, ctx.numerics.recipe
        dx_NI = dweight_EIO = None
        kernels, scales = library.available(dy_NO), recipe.power_of_two_scales
        if ctx.wanted[0]:
            if kernels:
                dx_NI = products.dgrad(dy_NO, counts, weight_EIO, False, ctx.numerics)
            else:
                dx_NI = _by_group(dy_NO, weight_EIO, counts, True, recipe.dgrad, scales)
        if ctx.wanted[1]:
            if kernels:
                dweight_EIO = products.wgrad(x_NI, dy_NO, counts, recipe)
            else:
                dweight_EIO = _weight_gradients(x_NI, dy_NO, counts, recipe.wgrad, scales)
        return dx_NI, dweight_EIO


def _groups(counts_E: np.ndarray) -> list[tuple[int, slice]]:
    """(expert, its rows) of the experts that have any."""
    stops = np.cumsum(counts_E)
    return [
        (int(expert), slice(int(stops[expert] - counts_E[expert]), int(stops[expert])))
        for expert in np.flatnonzero(counts_E)
    ]


def _by_group(
    x_NI: paddle.Tensor,
    weight_EIO: paddle.Tensor,
    counts_E: np.ndarray,
    transposed: bool,
    format: str,
    power_of_two: bool,
) -> paddle.Tensor:
    """Without the library: x @ weight, or x @ weight^T if `transposed`, group by group."""
    y_NO = empty((x_NI.shape[0], weight_EIO.shape[1 if transposed else 2]), x_NI)
    x, weight, y = view(x_NI), view(weight_EIO), view(y_NO)
    for expert, rows in _groups(counts_E):
        left, right = tensor(x[rows]), tensor(weight[expert])
        y[rows] = view(
            products.plain(left, right, format, power_of_two, transpose_right=transposed)
        )
    return y_NO


def _weight_gradients(
    x_NI: paddle.Tensor,
    dy_NO: paddle.Tensor,
    counts_E: np.ndarray,
    format: str,
    power_of_two: bool,
) -> paddle.Tensor:
    """Without the library: x^T dy, group by group; zero for empty groups."""
    x, dy = view(x_NI), view(dy_NO)
    dweight_EIO = paddle.zeros([len(counts_E), x.shape[1], dy.shape[1]], x_NI.dtype)
    dweight = view(dweight_EIO)
    for expert, rows in _groups(counts_E):
        left, right = tensor(x[rows]), tensor(dy[rows])
        dweight[expert] = view(
            products.plain(
                left, right, format, power_of_two, transpose_left=True, right_is_weight=False
            )
        )
    return dweight_EIO
