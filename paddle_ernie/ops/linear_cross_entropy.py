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

from paddle_ernie.ops.arrays import row_chunks, tensor, view, wanted

LOSS_CHUNK = 2048
"""Tokens whose logits exist at a time: 64 MB at a vocabulary of 8,192."""
NO_TARGET = -100
"""Label of a position without a target; nothing is computed for it."""


def linear_cross_entropy(
    hidden_TD: paddle.Tensor,
    weight_VD: paddle.Tensor,
    labels_T: np.ndarray,
    token_weights_T: np.ndarray,
) -> tuple[paddle.Tensor, np.ndarray]:
    """(sum of weight * loss as a scalar tensor, loss of each token in nats, 0 without a target)."""
    losses_T = np.zeros(len(labels_T), view(hidden_TD).dtype)
    needs = wanted(hidden_TD, weight_VD) if paddle.is_grad_enabled() else (False, False)
    total = _LinearCrossEntropy.apply(
        hidden_TD, weight_VD, labels_T, token_weights_T, losses_T, needs
    )
    return total, losses_T


def _losses_in_place(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    """Losses of a chunk. With weights, logits become the weighted sum's gradient."""
    losses = np.empty(len(labels), logits.dtype)
    for rows in row_chunks(len(logits), logits[:1].nbytes):
        part, at = logits[rows], (np.arange(rows.stop - rows.start), labels[rows])
        part -= part.max(axis=1, keepdims=True)
        target = part[at]
        total = np.exp(part, out=part).sum(axis=1)
        losses[rows] = np.log(total) - target
        if weights is not None:
            part *= (weights[rows] / total)[:, None]
            part[at] -= weights[rows]
    return losses


class _LinearCrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, hidden_TD, weight_VD, labels_T, token_weights_T, losses_T, needs):
        hidden = view(hidden_TD)
        targets = np.flatnonzero(labels_T != NO_TARGET)
        weights_T = token_weights_T.astype(hidden.dtype)
        ctx.dhidden = paddle.zeros_like(hidden_TD) if needs[0] else None
        ctx.dweight = paddle.zeros_like(weight_VD) if needs[1] else None
        for start in range(0, len(targets), LOSS_CHUNK):
            rows = targets[start : start + LOSS_CHUNK]
            chunk_CD = tensor(hidden[rows])
            logits_CV = paddle.matmul(chunk_CD, weight_VD, transpose_y=True)
            weights_C = weights_T[rows] if any(needs) else None
            losses_T[rows] = _losses_in_place(view(logits_CV), labels_T[rows], weights_C)
            if ctx.dhidden is not None:
                view(ctx.dhidden)[rows] = view(paddle.matmul(logits_CV, weight_VD))
            if ctx.dweight is not None:
                ctx.dweight.add_(paddle.matmul(logits_CV, chunk_CD, transpose_x=True))
        total = np.dot(losses_T.astype(np.float64), token_weights_T.astype(np.float64))
        return paddle.to_tensor(total, dtype=hidden_TD.dtype)

    @staticmethod
    def backward(ctx, dtotal):
        scale = float(dtotal)
        gradients = (ctx.dhidden, ctx.dweight)
        if scale == 1.0:  # the usual case: the total is what backward() was called on
            return gradients
        return tuple(None if gradient is None else gradient * scale for gradient in gradients)
