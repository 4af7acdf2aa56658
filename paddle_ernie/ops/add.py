"""Residual connections: a + b, and the gradients of any sum. Called by the blocks and `unpermute`.

Paddle adds on one thread; this adds on all of them.
"""

from collections.abc import Sequence

import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import wanted


def add(a: paddle.Tensor, b: paddle.Tensor) -> paddle.Tensor:
    """The sum of two tensors of one shape."""
    return _Add.apply(a, b) if library.available(a) else a + b


def sum_gradients(dsum: paddle.Tensor, wanted: Sequence[bool]) -> tuple[paddle.Tensor | None, ...]:
    """The gradient of each summand: `dsum` itself for the first that wants it, copies for others.

    Never one tensor for two: Paddle adds up the gradients of a tensor with several uses in place,
    in whichever arrived first, and would change the other summand's too.
    """
    gradients: list[paddle.Tensor | None] = [None] * len(wanted)
    for count, index in enumerate(index for index, want in enumerate(wanted) if want):
        gradients[index] = _copy(dsum) if count else dsum
    return tuple(gradients)


def _copy(x: paddle.Tensor) -> paddle.Tensor:
    return library.call("copy", x) if library.available(x) else x.clone()


class _Add(PyLayer):
    @staticmethod
    def forward(ctx, a, b):
        ctx.wanted = wanted(a, b)
        return library.call("add", a, b)

    @staticmethod
    def backward(ctx, dsum):
        return sum_gradients(dsum, ctx.wanted)
