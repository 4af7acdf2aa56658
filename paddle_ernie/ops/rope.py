"""Rotary position embedding on interleaved pairs (2i, 2i+1). Called by attention.

A pair is one complex number and its rotation one complex product, so a pass over the heads is one
vectorised multiply; the gradient is the same with the conjugate.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, row_chunks, tensor, view


def rope_rotations(position_ids: np.ndarray, head_dim: int, theta: float) -> np.ndarray:
    """cos + i sin of each position and pair, complex64 [*position_ids.shape, head_dim / 2].

    Angles are float32 products, as in the public ERNIE 4.5: at position 4,096 they differ from
    exact ones by 1e-4, and a checkpoint has learnt with these.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inverse_frequencies = 1 / np.power(np.float32(theta), exponents)
    angles = position_ids[..., None].astype(np.float32) * inverse_frequencies
    rotations = np.empty(angles.shape, np.complex64)
    rotations.real, rotations.imag = np.cos(angles), np.sin(angles)
    return rotations


def rope(x_TNd: paddle.Tensor, rotations_Td: np.ndarray, heads: int) -> paddle.Tensor:
    """Rotate the first `heads` of the N heads (queries and keys), copy the rest (values)."""
    return _Rope.apply(x_TNd, rotations_Td, heads)


class _Rope(PyLayer):
    @staticmethod
    def forward(ctx, x_TNd, rotations_Td, heads):
        ctx.rotations, ctx.heads = rotations_Td, heads
        return _rotate(x_TNd, rotations_Td, heads, inverse=False)

    @staticmethod
    def backward(ctx, dy_TNd):
        return _rotate(dy_TNd, ctx.rotations, ctx.heads, inverse=True)


def _rotate(
    x_TNd: paddle.Tensor, rotations_Td: np.ndarray, heads: int, *, inverse: bool
) -> paddle.Tensor:
    if library.available(x_TNd):
        pairs = np.ascontiguousarray(rotations_Td, np.complex64).view(np.float32)
        return library.call("rope", x_TNd, tensor(pairs), heads, inverse)
    y_TNd = empty(x_TNd.shape, x_TNd)
    x, y = view(x_TNd), view(y_TNd)
    rotations = np.conj(rotations_Td) if inverse else rotations_Td
    complex_type = np.result_type(x.dtype, np.complex64)
    for chunk in row_chunks(len(x), 2 * x[:1].nbytes):
        pairs, rotated = (array[chunk, :heads].view(complex_type) for array in (x, y))
        np.multiply(pairs, rotations[chunk, None], out=rotated)
        y[chunk, heads:] = x[chunk, heads:]
    return y_TNd
