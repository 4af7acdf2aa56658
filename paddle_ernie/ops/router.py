"""Routing: probabilities, choice of experts, and their weights. Called by the MoE layer.

    x [T, D] -> probabilities [T, E]           fp32: a rounded score flips choices
    ids [T, K]    = the K largest of probability + correction bias
    weights [T, K] = chosen probabilities (without the bias) / max(their sum, 1e-12)

The choice itself has no gradient; weights are gathered from the dense probabilities, so that the
router learns through them whoever made the choice (this function, or a replayed record).
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer
from paddle.nn.functional import softmax

from paddle_ernie.ops.arrays import empty, view
from paddle_ernie.ops.linear import linear_transposed

NORM_MIN = 1e-12  # ERNIE 4.5's moe_norm_min


def router_probabilities(x_TD: paddle.Tensor, weight_ED: paddle.Tensor) -> paddle.Tensor:
    """Softmax over the experts of the pool, [T, E]."""
    return softmax(linear_transposed(x_TD, weight_ED), axis=-1)


def select_experts(probabilities_TE: np.ndarray, bias_E: np.ndarray, top_k: int) -> np.ndarray:
    """int64 [T, top_k], best first; of equal scores the lower id (paddle.topk picks any)."""
    scores = probabilities_TE + bias_E
    ids = np.empty((len(scores), top_k), np.int64)
    rows = np.arange(len(scores))
    for rank in range(top_k):  # argmax takes the first of equals
        ids[:, rank] = scores.argmax(axis=1)
        scores[rows, ids[:, rank]] = -np.inf
    return ids


def routing_weights(probabilities_TE: paddle.Tensor, ids_TK: np.ndarray) -> paddle.Tensor:
    """The chosen probabilities, normalised; [T, K]."""
    return _RoutingWeights.apply(probabilities_TE, ids_TK)


class _RoutingWeights(PyLayer):
    @staticmethod
    def forward(ctx, probabilities_TE, ids_TK):
        weights_TK = empty(ids_TK.shape, probabilities_TE)
        chosen = np.take_along_axis(view(probabilities_TE), ids_TK, axis=1)
        total = chosen.sum(axis=1, keepdims=True)
        divisor = np.maximum(total, chosen.dtype.type(NORM_MIN))
        np.divide(chosen, divisor, out=view(weights_TK))
        ctx.save_for_backward(weights_TK)
        ctx.ids, ctx.divisor, ctx.clamped = ids_TK, divisor, total < NORM_MIN
        ctx.num_experts = probabilities_TE.shape[1]
        return weights_TK

    @staticmethod
    def backward(ctx, dweights_TK):
        """d p_i = (d w_i - sum_j d w_j w_j) / sum; without the sum's part where it was clamped."""
        (weights_TK,) = ctx.saved_tensor()
        weights, dweights = view(weights_TK), view(dweights_TK)
        mean = np.einsum("tk,tk->t", weights, dweights)[:, None]
        dchosen = (dweights - np.where(ctx.clamped, 0, mean)) / ctx.divisor
        dprobabilities = paddle.zeros([len(weights), ctx.num_experts], weights_TK.dtype)
        np.put_along_axis(view(dprobabilities), ctx.ids, dchosen, axis=1)
        return dprobabilities
