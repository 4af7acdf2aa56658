"""Routing: probabilities, choice of experts, and their weights. Called by the MoE layer.

    scores [T, E] -> probabilities [T, E]      fp32: a rounded score flips choices
    ids [T, K]    = the K largest of probability + correction bias, or a replayed record
    weights [T, K] = chosen probabilities (without the bias) / max(their sum, 1e-12)

The choice itself has no gradient; weights are gathered from the dense probabilities, so that the
router learns through them whoever made the choice. Chosen probabilities are added in ascending
order of the ids: a record gives the bits of the routing it came from, however it is ordered.
NaN scores give NaN probabilities and weights, with ids that are still distinct experts.
"""

from typing import NamedTuple

import numpy as np
import paddle
from paddle.autograd import PyLayer
from paddle.nn.functional import softmax

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, tensor, view
from paddle_ernie.utils.errors import InputError

NORM_MIN = 1e-12  # ERNIE 4.5's moe_norm_min
NO_ROUTE = -1
"""Fills the row of a token without a record."""


class Routing(NamedTuple):
    """Where tokens go. Gradients flow back to the scores from the weights and probabilities."""

    weights: paddle.Tensor
    """[T, K]."""
    ids: np.ndarray
    """int64 [T, K], best first; a replayed row as it was recorded."""
    probabilities: paddle.Tensor
    """[T, E]."""


def route(
    scores_TE: paddle.Tensor,
    bias_E: paddle.Tensor,
    top_k: int,
    replay_TK: np.ndarray | None = None,
) -> Routing:
    """Choose `top_k` experts for every token, or take those of `replay_TK`.

    Rows of `replay_TK` hold distinct ids of the E experts, or NO_ROUTE for a token to be routed
    anew. Replay replaces the choice only: weights are always of the present probabilities.
    """
    shape = (scores_TE.shape[0], top_k)
    if replay_TK is not None and replay_TK.shape != shape:
        raise InputError(
            f"replayed routes: shape {replay_TK.shape}, expected [tokens, top_k] = {shape}; give "
            "one row per token, -1 for a token without a record"
        )
    if not library.available(scores_TE):
        return _route_plain(scores_TE, bias_E, top_k, replay_TK)
    try:
        weights_TK, probabilities_TE, ids_TK = _Route.apply(
            scores_TE, bias_E.detach(), top_k, replay_TK
        )
    except OSError:  # the operator checks records itself, faster; this says it to the user
        if replay_TK is not None:
            _check_replay(replay_TK, scores_TE.shape[1])
        raise
    return Routing(weights_TK, ids_TK, probabilities_TE)


def _route_plain(
    scores_TE: paddle.Tensor, bias_E: paddle.Tensor, top_k: int, replay_TK: np.ndarray | None
) -> Routing:
    probabilities_TE = softmax(scores_TE, axis=-1)
    ids_TK = select_experts(view(probabilities_TE), view(bias_E), top_k)
    if replay_TK is not None:
        _check_replay(replay_TK, scores_TE.shape[1])
        ids_TK = np.where(replay_TK == NO_ROUTE, ids_TK, replay_TK)
    return Routing(routing_weights(probabilities_TE, ids_TK), ids_TK, probabilities_TE)


class _Route(PyLayer):
    @staticmethod
    def forward(ctx, scores_TE, bias_E, top_k, replay_TK):
        replay = np.empty(0, np.int32) if replay_TK is None else replay_TK
        replay = tensor(np.ascontiguousarray(replay, np.int32))
        ids, weights_TK, probabilities_TE = library.call(
            "router_forward", scores_TE, bias_E, replay, top_k
        )
        # Detached: an output that is saved itself keeps its graph, and so itself, alive.
        ctx.save_for_backward(probabilities_TE.detach(), ids, weights_TK.detach())
        ctx.set_materialize_grads(False)
        return weights_TK, probabilities_TE, view(ids)

    @staticmethod
    def backward(ctx, dweights_TK, dprobabilities_TE):
        saved = probabilities_TE, _, weights_TK = ctx.saved_tensor()
        if dweights_TK is None:
            dweights_TK = paddle.zeros_like(weights_TK)
        if dprobabilities_TE is None:
            dprobabilities_TE = empty((0,), probabilities_TE)
        return library.call("router_backward", *saved, dweights_TK, dprobabilities_TE), None


def _check_replay(replay_TK: np.ndarray, num_experts: int) -> None:
    ranked = np.sort(replay_TK, axis=1)
    valid = (ranked >= 0).all(axis=1) & (ranked < num_experts).all(axis=1)
    valid &= (ranked[:, 1:] != ranked[:, :-1]).all(axis=1)
    bad = np.flatnonzero(~valid & (ranked != NO_ROUTE).any(axis=1))
    if len(bad):
        raise InputError(
            f"replayed routes: token {bad[0]} has experts {replay_TK[bad[0]].tolist()}, expected "
            f"{replay_TK.shape[1]} different ones below {num_experts}, or only -1; was the record "
            "made by this model?"
        )


def select_experts(probabilities_TE: np.ndarray, bias_E: np.ndarray, top_k: int) -> np.ndarray:
    """int64 [T, top_k], best first; of equal scores the lower id (paddle.topk picks any)."""
    lowest = np.finfo(probabilities_TE.dtype).min  # above the -inf of what is already chosen
    scores = np.nan_to_num(probabilities_TE + bias_E, nan=lowest, neginf=lowest)
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
        probabilities = view(probabilities_TE)
        chosen = np.take_along_axis(probabilities, ids_TK, axis=1)
        ascending = np.take_along_axis(probabilities, np.sort(ids_TK, axis=1), axis=1)
        total = ascending.sum(axis=1, keepdims=True)
        divisor = np.maximum(total, chosen.dtype.type(NORM_MIN))
        np.divide(chosen, divisor, out=view(weights_TK))
        ctx.save_for_backward(weights_TK.detach())
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
