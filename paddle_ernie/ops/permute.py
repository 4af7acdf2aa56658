"""Bring tokens into expert order and combine the experts' outputs. Called by the MoE layer.

    tokens [T, D] --permute--> slots [N, D], sorted by expert --experts--> --unpermute--> [T, D]

`Dispatch` says which token sits in which slot. Tokens may have different numbers of experts:
they come in consecutive groups of equal top-k. A token's outputs are added in ascending expert
order, so that the sum does not depend on the order in which the router ranked them.
Letters: T tokens, N slots (assignments of a token to an expert), D width, K top-k, E experts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops.arrays import empty, row_chunks, view, wanted


@dataclass(frozen=True)
class Dispatch:
    """Where each assignment goes.

    Example: ids [[2, 0], [0, 1]] sort to slots of expert 0: tokens 0, 1; 1: token 1; 2: token 0:
    tokens = [0, 1, 1, 0], sources = [1, 2, 3, 0], slots = ([[0, 3], [1, 2]],), counts [2, 1, 1].
    """

    tokens: np.ndarray
    """int64 [N]; the token in each slot."""
    sources: np.ndarray
    """int64 [N]; which assignment, counted token by token in routing order, a slot holds."""
    slots: tuple[np.ndarray, ...]
    """Per group of equal top-k, int64 [tokens, K]: the slots of each token, ascending."""
    counts: np.ndarray
    """int64 [E]; slots of each expert."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all groups."""
        return sum(len(slots) for slots in self.slots)


def dispatch(ids: Sequence[np.ndarray], num_experts: int) -> Dispatch:
    """From the chosen expert ids [tokens, K] of consecutive groups of tokens."""
    flat_N = np.concatenate([group.reshape(-1) for group in ids])
    # Small integers get numpy's linear-time radix sort; stable keeps tokens in order.
    source_N = np.argsort(flat_N.astype(np.uint16), kind="stable")
    slot_N = np.empty_like(source_N)
    slot_N[source_N] = np.arange(len(source_N))
    tokens, slots, first_token, first = [], [], 0, 0
    for group in ids:
        count, top_k = group.shape
        tokens.append(np.repeat(np.arange(first_token, first_token + count), top_k))
        slots.append(np.sort(slot_N[first : first + group.size].reshape(group.shape), axis=1))
        first_token, first = first_token + count, first + group.size
    token_N = np.concatenate(tokens)[source_N]
    return Dispatch(token_N, source_N, tuple(slots), np.bincount(flat_N, minlength=num_experts))


def permute(x_TD: paddle.Tensor, to: Dispatch) -> paddle.Tensor:
    """Copy each token into its slots, [N, D]."""
    return _Permute.apply(x_TD, to)


def unpermute(y_ND: paddle.Tensor, weights_N: paddle.Tensor, to: Dispatch) -> paddle.Tensor:
    """For each token the weighted sum of its slots, [T, D]; weights in routing order."""
    return _Unpermute.apply(y_ND, weights_N, to)


def _sum_slots(y: np.ndarray, weights: np.ndarray | None, to: Dispatch, out: np.ndarray) -> None:
    """out[t] = sum over the slots of t, in order, of y[slot] (* weights[slot])."""
    for tokens, slots in _token_chunks(to, y[:1].nbytes):
        total = out[tokens]
        for rank in range(slots.shape[1]):
            at = slots[:, rank]
            part = np.take(y, at, axis=0)
            if weights is not None:
                part *= weights[at, None]
            if rank == 0:
                total[...] = part
            else:
                total += part


def _token_chunks(to: Dispatch, row_bytes: int) -> Iterator[tuple[slice, np.ndarray]]:
    first = 0
    for slots in to.slots:
        for chunk in row_chunks(len(slots), 3 * row_bytes):
            yield slice(first + chunk.start, first + chunk.stop), slots[chunk]
        first += len(slots)


class _Permute(PyLayer):
    @staticmethod
    def forward(ctx, x_TD, to):
        ctx.dispatch = to
        y_ND = empty((len(to.tokens), x_TD.shape[1]), x_TD)
        np.take(view(x_TD), to.tokens, axis=0, out=view(y_ND), mode="clip")
        return y_ND

    @staticmethod
    def backward(ctx, dy_ND):
        dx_TD = empty((ctx.dispatch.num_tokens, dy_ND.shape[1]), dy_ND)
        _sum_slots(view(dy_ND), None, ctx.dispatch, view(dx_TD))
        return dx_TD


class _Unpermute(PyLayer):
    @staticmethod
    def forward(ctx, y_ND, weights_N, to):
        ctx.dispatch = to
        out_TD = empty((to.num_tokens, y_ND.shape[1]), y_ND)
        weights = view(weights_N)[to.sources]
        _sum_slots(view(y_ND), weights, to, view(out_TD))
        ctx.save_for_backward(y_ND)
        ctx.weights, ctx.wanted = weights, wanted(y_ND, weights_N)
        return out_TD

    @staticmethod
    def backward(ctx, dout_TD):
        (y_ND,) = ctx.saved_tensor()
        to, weights = ctx.dispatch, ctx.weights
        dy_ND, dweights_N = empty(y_ND.shape, y_ND), empty((len(weights),), y_ND)
        y, dy, dout = view(y_ND), view(dy_ND), view(dout_TD)
        dslots = np.empty_like(weights)
        for chunk in row_chunks(len(weights), 3 * y[:1].nbytes):
            np.take(dout, to.tokens[chunk], axis=0, out=dy[chunk], mode="clip")
            np.einsum("nd,nd->n", dy[chunk], y[chunk], out=dslots[chunk])
            dy[chunk] *= weights[chunk, None]
        view(dweights_N)[to.sources] = dslots
        return dy_ND if ctx.wanted[0] else None, dweights_N if ctx.wanted[1] else None
