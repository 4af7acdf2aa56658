"""Linear map x_TI @ weight_IO. Called by attention, MLPs, the router and the heads."""

import paddle


def linear(x_TI: paddle.Tensor, weight_IO: paddle.Tensor) -> paddle.Tensor:
    """The product; gradients are two products with transpose flags (no transposed copies)."""
    return paddle.matmul(x_TI, weight_IO)


def linear_transposed(x_TI: paddle.Tensor, weight_OI: paddle.Tensor) -> paddle.Tensor:
    """x_TI @ weight_OI^T, for weights stored by output row (embedding, router)."""
    return paddle.matmul(x_TI, weight_OI, transpose_y=True)
