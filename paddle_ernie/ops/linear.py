"""Linear map x_TI @ weight_IO. Called by attention, MLPs, the router and the heads."""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library, products
from paddle_ernie.ops.arrays import wanted
from paddle_ernie.ops.numerics import Numerics


def linear(
    x_TI: paddle.Tensor, weight_IO: paddle.Tensor, numerics: Numerics | None = None
) -> paddle.Tensor:
    """The product; None is fp32, with the weight packed for this call."""
    return _Linear.apply(x_TI, weight_IO, False, numerics or Numerics())


def linear_transposed(
    x_TI: paddle.Tensor, weight_OI: paddle.Tensor, numerics: Numerics | None = None
) -> paddle.Tensor:
    """x_TI @ weight_OI^T, for weights stored by output row (embedding, router)."""
    return _Linear.apply(x_TI, weight_OI, True, numerics or Numerics())


class _Linear(PyLayer):
    @staticmethod
    def forward(ctx, x_TI, weight, transposed, numerics):
        ctx.save_for_backward(x_TI, weight)
        ctx.transposed, ctx.numerics = transposed, numerics
        ctx.wanted = wanted(x_TI, weight)
        if library.available(x_TI):
            return products.forward(x_TI, _one_group(x_TI), weight, transposed, numerics)
        recipe = numerics.recipe
        return products.plain(
            x_TI, weight, recipe.forward, recipe.power_of_two_scales, transpose_right=transposed
        )

    @staticmethod
    def backward(ctx, dy_TO):
        x_TI, weight = ctx.saved_tensor()
        recipe, transposed = ctx.numerics.recipe, ctx.transposed
        kernels, scales = library.available(dy_TO), recipe.power_of_two_scales
        dx_TI = dweight = None
        if ctx.wanted[0]:
            if kernels:
                dx_TI = products.dgrad(dy_TO, _one_group(dy_TO), weight, transposed, ctx.numerics)
            else:
                dx_TI = products.plain(
                    dy_TO, weight, recipe.dgrad, scales, transpose_right=not transposed
                )
        if ctx.wanted[1]:
            left, right = (dy_TO, x_TI) if transposed else (x_TI, dy_TO)
            if kernels:
                dweight = products.wgrad(left, right, _one_group(left), recipe)
                dweight = dweight.reshape(weight.shape)
            else:
                dweight = products.plain(
                    left, right, recipe.wgrad, scales, transpose_left=True, right_is_weight=False
                )
        return dx_TI, dweight


def _one_group(x_TI: paddle.Tensor) -> np.ndarray:
    return np.array([x_TI.shape[0]], np.int64)
