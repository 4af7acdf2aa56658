"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight. Called before every attention and MLP.

`add_rms_norm` also makes the residual addition before it, in the same pass over memory:

    x, delta -> x + delta, norm(x + delta)
"""

from collections.abc import Sequence

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, row_chunks, view, wanted


def rms_norm(x_TD: paddle.Tensor, weight_D: paddle.Tensor, eps: float) -> paddle.Tensor:
    """Normalise each row."""
    return _RMSNorm.apply(x_TD, weight_D, eps)


def add_rms_norm(
    x_TD: paddle.Tensor, delta_TD: paddle.Tensor, weight_D: paddle.Tensor, eps: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """(x + delta, rms_norm(x + delta)), with the bits of the two steps on their own."""
    return _AddRMSNorm.apply(x_TD, delta_TD, weight_D, eps)


class _RMSNorm(PyLayer):
    @staticmethod
    def forward(ctx, x_TD, weight_D, eps):
        if library.available(x_TD):
            y_TD, scale_T = library.call("rms_norm_forward", x_TD, weight_D, eps)
        else:
            y_TD, scale_T = _normalise(x_TD, weight_D, eps)
        ctx.save_for_backward(x_TD, weight_D)
        ctx.scale, ctx.wanted = scale_T, wanted(x_TD, weight_D)
        return y_TD

    @staticmethod
    def backward(ctx, dy_TD):
        x_TD, weight_D = ctx.saved_tensor()
        if library.available(x_TD):
            gradients = library.call("rms_norm_backward", x_TD, weight_D, ctx.scale, dy_TD)
        else:
            gradients = _gradients(x_TD, weight_D, ctx.scale, dy_TD)
        return _only(gradients, ctx.wanted)


class _AddRMSNorm(PyLayer):
    @staticmethod
    def forward(ctx, x_TD, delta_TD, weight_D, eps):
        if library.available(x_TD):
            sum_TD, y_TD, scale_T = library.call(
                "add_rms_norm_forward", x_TD, delta_TD, weight_D, eps
            )
        else:
            sum_TD = x_TD + delta_TD
            y_TD, scale_T = _normalise(sum_TD, weight_D, eps)
        ctx.set_materialize_grads(False)  # an output nobody used has no gradient, instead of zeros
        ctx.save_for_backward(sum_TD.detach(), weight_D)  # an output that keeps itself alive
        ctx.scale, ctx.wanted = scale_T, wanted(x_TD, delta_TD, weight_D)
        return sum_TD, y_TD

    @staticmethod
    def backward(ctx, dsum_TD, dy_TD):
        """The two summands have the same gradient, but each needs a tensor of its own.

        Paddle adds an input's further gradients into the first one it was given.
        """
        sum_TD, weight_D = ctx.saved_tensor()
        both = ctx.wanted[0] and ctx.wanted[1]
        dy_TD = paddle.zeros_like(sum_TD) if dy_TD is None else dy_TD
        if library.available(sum_TD):
            dsum_TD = empty((0,), sum_TD) if dsum_TD is None else dsum_TD
            dx_TD, copy_TD, dweight_D = library.call(
                "add_rms_norm_backward", sum_TD, weight_D, ctx.scale, dy_TD, dsum_TD, both
            )
        else:
            dx_TD, dweight_D = _gradients(sum_TD, weight_D, ctx.scale, dy_TD)
            dx_TD = dx_TD if dsum_TD is None else dx_TD + dsum_TD
            copy_TD = dx_TD.clone()
        return _only((dx_TD, copy_TD if both else dx_TD, dweight_D), ctx.wanted)


def _only(gradients: Sequence[paddle.Tensor], wanted: Sequence[bool]) -> tuple:
    pairs = zip(gradients, wanted, strict=True)
    return tuple(gradient if is_wanted else None for gradient, is_wanted in pairs)


def _normalise(
    x_TD: paddle.Tensor, weight_D: paddle.Tensor, eps: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """(y, 1 / rms of each row), without the library."""
    y_TD, scale_T = empty(x_TD.shape, x_TD), empty(x_TD.shape[:1], x_TD)
    x, y, weight = view(x_TD), view(y_TD), view(weight_D)
    scale = view(scale_T)[:, None]
    rows, width = x.shape
    for chunk in row_chunks(rows, 2 * width * x.itemsize):
        squares = np.einsum("td,td->t", x[chunk], x[chunk])
        scale[chunk, 0] = 1 / np.sqrt(squares / width + x.dtype.type(eps))
        np.multiply(x[chunk], scale[chunk], out=y[chunk])
        y[chunk] *= weight
    return y_TD, scale_T


def _gradients(
    x_TD: paddle.Tensor, weight_D: paddle.Tensor, scale_T: paddle.Tensor, dy_TD: paddle.Tensor
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """dx = scale * (dy * w - x * mean(dy * w * x) * scale^2), dw = sum_t(dy * x * scale)."""
    dx_TD, dweight_D = empty(x_TD.shape, x_TD), paddle.zeros_like(weight_D)
    x, dy, dx, weight, dweight = map(view, (x_TD, dy_TD, dx_TD, weight_D, dweight_D))
    scales = view(scale_T)[:, None]
    rows, width = x.shape
    for chunk in row_chunks(rows, 4 * width * x.itemsize):
        scale = scales[chunk]
        product = dy[chunk] * x[chunk]
        # Both sums are matrix-vector products, which read `product` once.
        dweight += scale[:, 0] @ product
        mean = (product @ weight)[:, None] * np.square(scale) / width
        np.multiply(x[chunk], -mean, out=product)
        np.multiply(dy[chunk], weight, out=dx[chunk])
        dx[chunk] += product
        dx[chunk] *= scale
    return dx_TD, dweight_D
