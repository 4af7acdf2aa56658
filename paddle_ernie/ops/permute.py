"""Bring tokens into expert order and combine the experts' outputs. Called by the MoE layer.

    tokens [T, D] --permute--> slots [N, D], sorted by expert --experts--> --unpermute--> [T, D]

`Dispatch` says which token sits in which slot; tokens may have different numbers of experts.
A token's result is added up in one fixed order, first the bases as they are given, then its slots
as they rise, which is ascending expert order:

    out[t] = ((base_0[t] + base_1[t]) + w_0 y[slot_0]) + w_1 y[slot_1] + ...

so that it depends neither on the other tokens nor on how the router ranked the experts.
Letters: T tokens, N slots (assignments of a token to an expert), D width, K top-k, E experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.add import sum_gradients
from paddle_ernie.ops.arrays import empty, tensor, view, wanted


@dataclass(frozen=True)
class Dispatch:
    """Where each assignment goes.

    Example: ids [[2, 0], [0, 1]] sort to slots of expert 0: tokens 0, 1; 1: token 1; 2: token 0:
    tokens [0, 1, 1, 0], sources [1, 2, 3, 0], slots [0, 3, 1, 2], starts [0, 2, 4],
    counts [2, 1, 1].
    """

    tokens: np.ndarray
    """int32 [N]; the token in each slot."""
    sources: np.ndarray
    """int32 [N]; which assignment, counted token by token in routing order, a slot holds."""
    slots: np.ndarray
    """int32 [N]; the slots of each token, ascending, one token after the other."""
    starts: np.ndarray
    """int32 [T + 1]; where each token's slots begin in `slots`."""
    counts: np.ndarray
    """int64 [E]; slots of each expert."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.starts) - 1

    def tensors(self) -> tuple[paddle.Tensor, ...]:
        """What the compiled operators take, without copies."""
        return tuple(map(tensor, (self.tokens, self.sources, self.slots, self.starts)))


def dispatch(ids: Sequence[np.ndarray], num_experts: int) -> Dispatch:
    """From the chosen expert ids, int64 [tokens, K], of consecutive groups of tokens."""
    flat = [group.reshape(-1) for group in ids]
    experts_N = np.ascontiguousarray(flat[0] if len(flat) == 1 else np.concatenate(flat), np.int64)
    starts = _starts(ids)
    if library.loaded():
        results = library.call("dispatch", tensor(experts_N), tensor(starts), num_experts)
        tokens, sources, slots, counts = map(view, results)
        return Dispatch(tokens, sources, slots, starts, counts)
    sources = np.argsort(experts_N, kind="stable").astype(np.int32)
    tokens = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))[sources]
    # Sorted by token, each token's slots keep their order.
    slots = np.argsort(tokens, kind="stable").astype(np.int32)
    counts = np.bincount(experts_N, minlength=num_experts)
    return Dispatch(tokens, sources, slots, starts, counts)


def _starts(ids: Sequence[np.ndarray]) -> np.ndarray:
    starts, first = [], 0
    for group in ids:
        starts.append(np.arange(first, first + group.size, group.shape[1], dtype=np.int32))
        first += group.size
    return np.concatenate([*starts, np.array([first], np.int32)])


def permute(x_TD: paddle.Tensor, to: Dispatch) -> paddle.Tensor:
    """Copy each token into its slots, [N, D]."""
    return _Permute.apply(x_TD, to)


def unpermute(
    y_ND: paddle.Tensor, weights_N: paddle.Tensor, to: Dispatch, *bases_TD: paddle.Tensor
) -> paddle.Tensor:
    """For each token the weighted sum of its slots, [T, D]; weights in routing order.

    `bases_TD` (shared experts, residual) are added in the same pass, before the slots.
    """
    return _Unpermute.apply(y_ND, weights_N, to, *bases_TD)


class _Permute(PyLayer):
    @staticmethod
    def forward(ctx, x_TD, to):
        ctx.dispatch = to
        if library.available(x_TD):
            return library.call("gather_rows", x_TD, tensor(to.tokens))
        y_ND = empty((len(to.tokens), x_TD.shape[1]), x_TD)
        np.take(view(x_TD), to.tokens, axis=0, out=view(y_ND), mode="clip")
        return y_ND

    @staticmethod
    def backward(ctx, dy_ND):
        return _combine(dy_ND, None, ctx.dispatch)


class _Unpermute(PyLayer):
    @staticmethod
    def forward(ctx, y_ND, weights_N, to, *bases_TD):
        ctx.save_for_backward(y_ND, weights_N)
        ctx.dispatch, ctx.wanted = to, wanted(y_ND, weights_N, *bases_TD)
        return _combine(y_ND, weights_N, to, *bases_TD)

    @staticmethod
    def backward(ctx, dout_TD):
        y_ND, weights_N = ctx.saved_tensor()
        gradients = _combine_gradient(y_ND, weights_N, ctx.dispatch, dout_TD)
        return (
            *(g if wanted else None for g, wanted in zip(gradients, ctx.wanted[:2], strict=True)),
            *sum_gradients(dout_TD, ctx.wanted[2:]),
        )


def _combine(
    y_ND: paddle.Tensor, weights_N: paddle.Tensor | None, to: Dispatch, *bases_TD: paddle.Tensor
) -> paddle.Tensor:
    if library.available(y_ND):
        factors = empty((0,), y_ND) if weights_N is None else weights_N
        return library.call("combine", y_ND, factors, list(bases_TD), *to.tensors())
    out_TD = paddle.zeros([to.num_tokens, y_ND.shape[1]], y_ND.dtype)
    out, y = view(out_TD), view(y_ND)
    for base in bases_TD:
        out += view(base)
    if weights_N is not None:
        y = y * view(weights_N)[to.sources, None]
    lengths = np.diff(to.starts)
    for rank in range(lengths.max(initial=0)):
        tokens = np.flatnonzero(lengths > rank)
        out[tokens] += y[to.slots[to.starts[tokens] + rank]]
    return out_TD


def _combine_gradient(
    y_ND: paddle.Tensor, weights_N: paddle.Tensor, to: Dispatch, dout_TD: paddle.Tensor
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Gradients of y and of the weights."""
    if library.available(y_ND):
        return library.call("combine_backward", y_ND, weights_N, dout_TD, *to.tensors())
    dy_ND, dweights_N = empty(y_ND.shape, y_ND), empty(weights_N.shape, y_ND)
    dslots = view(dout_TD)[to.tokens]
    view(dweights_N)[to.sources] = np.einsum("nd,nd->n", dslots, view(y_ND))
    np.multiply(dslots, view(weights_N)[to.sources, None], out=view(dy_ND))
    return dy_ND, dweights_N
