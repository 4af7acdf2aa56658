"""Output projection and cross-entropy in one, chunk by chunk. Called by the model's loss.

    hidden [T, D] -- rows with a target --> chunk [C, D] @ weight^T -> logits [C, V] -> loss [C]
                                                        in place: (softmax - onehot) * token weight
                                                        -> dhidden of the chunk, dweight += ...

Logits exist for LOSS_CHUNK tokens at a time. Since each token's weight in the total is known
beforehand, the forward pass finishes the gradients as well, and the backward pass hands them over.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import tensor, view, wanted
from paddle_ernie.ops.numerics import Numerics
from paddle_ernie.ops.token_logprobs import (
    LOSS_CHUNK,
    NO_TARGET,
    checked_labels,
    head_formats,
    only,
    packed_head,
    plain_head,
)

__all__ = ["LOSS_CHUNK", "NO_TARGET", "linear_cross_entropy"]


def linear_cross_entropy(
    hidden_TD: paddle.Tensor,
    weight_VD: paddle.Tensor,
    labels_T: np.ndarray,
    token_weights_T: np.ndarray,
    numerics: Numerics | None = None,
) -> tuple[paddle.Tensor, np.ndarray]:
    """(sum of weight * loss as a scalar tensor, loss of each token in nats, 0 without a target).

    A token's loss is minus what `token_logprobs` gives for it, to the bit.
    """
    labels_T = checked_labels(labels_T, hidden_TD.shape[0], weight_VD.shape[0])
    needs = wanted(hidden_TD, weight_VD) if paddle.is_grad_enabled() else (False, False)
    numerics, losses = (numerics or Numerics()).high, []
    total = _LinearCrossEntropy.apply(
        hidden_TD, weight_VD, labels_T, token_weights_T, numerics, needs, losses
    )
    return total, losses[0]


def _kernel(hidden_TD, weight_VD, labels_T, token_weights_T, numerics, needs):
    """(total, losses, (dhidden, dweight))."""
    weights_T = np.ascontiguousarray(token_weights_T, np.float32)
    total, losses_T, *gradients = library.call(
        "linear_cross_entropy", hidden_TD, weight_VD, tensor(labels_T), tensor(weights_T),
        *packed_head(weight_VD, numerics, needs[0]), *head_formats(numerics.recipe), LOSS_CHUNK,
        *needs,
    )  # fmt: skip
    return total, view(losses_T), only(gradients, needs)


def _plain(hidden_TD, weight_VD, labels_T, token_weights_T, numerics, needs):
    """The same with Paddle and numpy."""
    ones, weights_T = np.ones(len(labels_T), np.float32), np.asarray(token_weights_T)
    upstream = (-weights_T, np.zeros_like(weights_T))
    head = plain_head(
        hidden_TD, weight_VD, labels_T, ones, numerics.recipe, LOSS_CHUNK, upstream, needs
    )
    losses_T = 0 - head.logprobs
    total = (losses_T.astype(np.float64) * weights_T.astype(np.float64)).sum()
    return paddle.to_tensor(total, dtype=hidden_TD.dtype), losses_T, head.gradients


class _LinearCrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, hidden_TD, weight_VD, labels_T, token_weights_T, numerics, needs, losses):
        body = _kernel if library.available(hidden_TD) else _plain
        total, losses_T, ctx.gradients = body(
            hidden_TD, weight_VD, labels_T, token_weights_T, numerics, needs
        )
        losses.append(losses_T)
        return total

    @staticmethod
    def backward(ctx, dtotal):
        scale = float(dtotal)
        if scale == 1.0:  # the usual case: the total is what backward() was called on
            return ctx.gradients
        return tuple(None if gradient is None else gradient * scale for gradient in ctx.gradients)
