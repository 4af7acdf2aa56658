"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight. Called before every attention and MLP."""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops.arrays import empty, row_chunks, view, wanted


def rms_norm(x_TD: paddle.Tensor, weight_D: paddle.Tensor, eps: float) -> paddle.Tensor:
    """Normalise each row."""
    return _RMSNorm.apply(x_TD, weight_D, eps)


class _RMSNorm(PyLayer):
    @staticmethod
    def forward(ctx, x_TD, weight_D, eps):
        y_TD = empty(x_TD.shape, x_TD)
        x, y, weight = view(x_TD), view(y_TD), view(weight_D)
        rows, width = x.shape
        scale = np.empty((rows, 1), x.dtype)  # 1 / rms of each row
        for chunk in row_chunks(rows, 2 * width * x.itemsize):
            squares = np.einsum("td,td->t", x[chunk], x[chunk])
            scale[chunk, 0] = 1 / np.sqrt(squares / width + x.dtype.type(eps))
            np.multiply(x[chunk], scale[chunk], out=y[chunk])
            y[chunk] *= weight
        ctx.save_for_backward(x_TD, weight_D)
        ctx.scale, ctx.wanted = scale, wanted(x_TD, weight_D)
        return y_TD

    @staticmethod
    def backward(ctx, dy_TD):
        """dx = scale * (dy * w - x * mean(dy * w * x) * scale^2), dw = sum_t(dy * x * scale)."""
        x_TD, weight_D = ctx.saved_tensor()
        dx_TD, dweight_D = empty(x_TD.shape, x_TD), paddle.zeros_like(weight_D)
        x, dy, dx, weight, dweight = map(view, (x_TD, dy_TD, dx_TD, weight_D, dweight_D))
        rows, width = x.shape
        for chunk in row_chunks(rows, 4 * width * x.itemsize):
            scale = ctx.scale[chunk]
            product = dy[chunk] * x[chunk]
            # Both sums are matrix-vector products, which read `product` once.
            dweight += scale[:, 0] @ product
            mean = (product @ weight)[:, None] * np.square(scale) / width
            np.multiply(x[chunk], -mean, out=product)
            np.multiply(dy[chunk], weight, out=dx[chunk])
            dx[chunk] += product
            dx[chunk] *= scale
        return tuple(
            gradient if wanted else None
            for gradient, wanted in zip((dx_TD, dweight_D), ctx.wanted, strict=True)
        )
