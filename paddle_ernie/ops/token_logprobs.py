"""Log-probability and entropy of each token's label. Called by RL, distillation and decoding.

    hidden [T, D] -- rows with a target --> chunk [C, D] @ weight^T -> logits [C, V]
        logits of a row, scaled by 1 / temperature --> log p[label], -sum p log p

Logits exist for LOSS_CHUNK tokens at a time; the backward pass computes them again and starts from
the log-sum-exp that the forward pass kept. One row function serves the training loss, these
functions and the decoder's log-probabilities: where the logits are equal, so are the bits, and a
token's loss is minus its log-probability. Positions labelled NO_TARGET give 0 for both values.
Recipes with FP8 use bf16 here: the output layer is too coarse in FP8.
"""

from typing import NamedTuple

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import row_chunks, tensor, view, wanted
from paddle_ernie.ops.numerics import FORMATS, Numerics, Recipe
from paddle_ernie.ops.products import packed, plain
from paddle_ernie.utils.errors import InputError

LOSS_CHUNK = 512
"""Tokens whose logits exist at a time: 16 MB at a vocabulary of 8,192."""
NO_TARGET = -100
"""Label of a position without a target; nothing is computed for it."""


def token_logprobs(
    hidden_TD: paddle.Tensor,
    weight_VD: paddle.Tensor,
    labels_T: np.ndarray,
    temperature: float | np.ndarray = 1.0,
    numerics: Numerics | None = None,
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """(log-probability of each label, entropy of its distribution), in nats, both differentiable.

    The distribution is softmax(hidden @ weight^T / temperature); `temperature` may differ by token.
    """
    labels_T = checked_labels(labels_T, hidden_TD.shape[0], weight_VD.shape[0])
    temperatures_T = _temperatures(temperature, len(labels_T))
    numerics = (numerics or Numerics()).high
    return _TokenLogprobs.apply(hidden_TD, weight_VD, labels_T, temperatures_T, numerics)


@paddle.no_grad()
def logprobs_of_logits(
    logits_NV: paddle.Tensor, labels_N: np.ndarray, temperature: float | np.ndarray = 1.0
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """`token_logprobs` of logits that are there already, without gradients."""
    labels_N = checked_labels(labels_N, *logits_NV.shape)
    temperatures_N = _temperatures(temperature, len(labels_N))
    if library.available(logits_NV):
        arguments = (logits_NV, tensor(labels_N), tensor(temperatures_N))
        return tuple(library.call("logits_logprobs", *arguments))
    logits = view(logits_NV).copy()
    return tuple(map(tensor, plain_rows(logits, labels_N, temperatures_N)))


@paddle.no_grad()
def log_softmax_rows(
    logits_BV: paddle.Tensor, temperature: float | np.ndarray = 1.0
) -> paddle.Tensor:
    """log softmax(logits / temperature): column v of a row is the log-probability of label v."""
    temperatures_B = _temperatures(temperature, logits_BV.shape[0])
    if library.available(logits_BV):
        return library.call("log_softmax", logits_BV, tensor(temperatures_B))
    logits = view(logits_BV).copy()
    plain_rows(logits, np.zeros(len(logits), np.int64), temperatures_B)
    return tensor(logits)


class _TokenLogprobs(PyLayer):
    @staticmethod
    def forward(ctx, hidden_TD, weight_VD, labels_T, temperatures_T, numerics):
        ctx.save_for_backward(hidden_TD, weight_VD)
        ctx.needs = wanted(hidden_TD, weight_VD)
        ctx.labels, ctx.temperatures, ctx.numerics = labels_T, temperatures_T, numerics
        recipe = numerics.recipe
        if library.available(hidden_TD):
            logprobs_T, entropies_T, ctx.rows = library.call(
                "token_logprobs", hidden_TD, weight_VD, tensor(labels_T), tensor(temperatures_T),
                packed(weight_VD, True, recipe.forward, numerics),
                FORMATS.index(recipe.forward), LOSS_CHUNK,
            )  # fmt: skip
            return logprobs_T, entropies_T
        head = plain_head(hidden_TD, weight_VD, labels_T, temperatures_T, recipe, LOSS_CHUNK)
        return tensor(head.logprobs), tensor(head.entropies)

    @staticmethod
    def backward(ctx, dlogprobs_T, dentropies_T):
        hidden_TD, weight_VD = ctx.saved_tensor()
        recipe = ctx.numerics.recipe
        if not library.available(hidden_TD):
            upstream = (view(dlogprobs_T), view(dentropies_T))
            head = plain_head(
                hidden_TD, weight_VD, ctx.labels, ctx.temperatures, recipe, LOSS_CHUNK, upstream,
                ctx.needs,
            )  # fmt: skip
            return head.gradients
        gradients = library.call(
            "token_logprobs_grad", hidden_TD, weight_VD, tensor(ctx.labels),
            tensor(ctx.temperatures), ctx.rows, dlogprobs_T, dentropies_T,
            *packed_head(weight_VD, ctx.numerics, ctx.needs[0]), *head_formats(recipe), LOSS_CHUNK,
            *ctx.needs,
        )  # fmt: skip
        return only(gradients, ctx.needs)


def only(gradients: list[paddle.Tensor], needs: tuple[bool, bool]) -> tuple:
    """None for the gradients that are not wanted."""
    return tuple(x if need else None for x, need in zip(gradients, needs, strict=True))


def packed_head(
    weight_VD: paddle.Tensor, numerics: Numerics, want_hidden: bool
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """The weight as right operand of the logits and of the hidden states' gradient.

    If that is not wanted, the second is a stand-in.
    """
    recipe = numerics.recipe
    logits = packed(weight_VD, True, recipe.forward, numerics)
    return logits, packed(weight_VD, False, recipe.dgrad, numerics) if want_hidden else logits


def head_formats(recipe: Recipe) -> tuple[int, int, int]:
    """The three products' formats, as numbers."""
    return tuple(map(FORMATS.index, (recipe.forward, recipe.dgrad, recipe.wgrad)))


def checked_labels(labels_T: np.ndarray, tokens: int, vocabulary: int) -> np.ndarray:
    """As contiguous int64, one for each token, each inside the vocabulary or NO_TARGET."""
    labels_T = np.ascontiguousarray(labels_T, np.int64)
    if labels_T.shape != (tokens,):
        raise InputError(
            f"labels: shape {list(labels_T.shape)} for {tokens} rows of hidden states or logits; "
            f"expected [{tokens}]: one label a row, {NO_TARGET} where there is none"
        )
    if tokens and (labels_T.max() >= vocabulary or labels_T.min() < 0):
        wrong = (labels_T != NO_TARGET) & ((labels_T < 0) | (labels_T >= vocabulary))
        for at in np.flatnonzero(wrong)[:1]:
            raise InputError(
                f"labels: {labels_T[at]} at position {at}; expected 0 to {vocabulary - 1}, or "
                f"{NO_TARGET} for no target: was the text encoded with this model's tokenizer?"
            )
    return labels_T


def _temperatures(temperature: float | np.ndarray, tokens: int) -> np.ndarray:
    values = np.asarray(temperature, np.float32)
    if values.shape not in ((), (tokens,)) or not (values > 0).all():
        raise InputError(
            f"temperature: {temperature}; expected one positive number, or {tokens} of them, one a "
            "row (for greedy decoding take the likeliest token and score it at temperature 1)"
        )
    return np.full(tokens, values, np.float32)


class PlainHead(NamedTuple):
    """What `plain_head` computes."""

    logprobs: np.ndarray
    entropies: np.ndarray
    gradients: tuple[paddle.Tensor | None, paddle.Tensor | None]
    """Of hidden states and weight."""


def plain_head(
    hidden_TD: paddle.Tensor,
    weight_VD: paddle.Tensor,
    labels_T: np.ndarray,
    temperatures_T: np.ndarray,
    recipe: Recipe,
    chunk: int,
    upstream: tuple[np.ndarray, np.ndarray] | None = None,
    needs: tuple[bool, bool] = (False, False),
) -> PlainHead:
    """The kernels' walk over chunks with Paddle's products and numpy, in any float type.

    `upstream`: gradients of each token's log-probability and entropy.
    """
    hidden = view(hidden_TD)
    logprobs_T, entropies_T = np.zeros((2, len(hidden)), hidden.dtype)
    dhidden_TD = paddle.zeros_like(hidden_TD) if needs[0] else None
    dweight_VD = paddle.zeros_like(weight_VD) if needs[1] else None
    targets = np.flatnonzero(labels_T != NO_TARGET)
    for start in range(0, len(targets), chunk):
        rows = targets[start : start + chunk]
        chunk_CD = tensor(hidden[rows])
        logits_CV = plain(chunk_CD, weight_VD, recipe.forward, transpose_right=True)
        given = None if upstream is None or not any(needs) else tuple(x[rows] for x in upstream)
        logprobs_T[rows], entropies_T[rows] = plain_rows(
            view(logits_CV), labels_T[rows], temperatures_T[rows], given
        )
        if dhidden_TD is not None:
            view(dhidden_TD)[rows] = view(plain(logits_CV, weight_VD, recipe.dgrad))
        if dweight_VD is not None:
            dweight_VD.add_(plain(logits_CV, chunk_CD, recipe.wgrad, transpose_left=True))
    return PlainHead(logprobs_T, entropies_T, (dhidden_TD, dweight_VD))


def plain_rows(
    logits: np.ndarray,
    labels: np.ndarray,
    temperatures: np.ndarray,
    upstream: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(log-probabilities, entropies). In place, logits become log p, or, given the upstream
    gradients, their own gradient: 1 / temperature * (dlogprob * (onehot - p)
    - dentropy * p * (log p + entropy)).
    """
    logprobs, entropies = np.zeros((2, len(logits)), logits.dtype)
    for rows in row_chunks(len(logits), logits[:1].nbytes):
        part, label = logits[rows], labels[rows, None]
        inverse = 1 / temperatures[rows, None].astype(part.dtype)
        part -= part.max(axis=1, keepdims=True)
        part *= inverse
        part -= np.log(np.exp(part).sum(axis=1, keepdims=True))
        p, finite = np.exp(part), np.maximum(part, np.finfo(part.dtype).min)
        entropy = -np.einsum("nv,nv->n", p, finite)
        has_target = labels[rows] != NO_TARGET
        at = np.take_along_axis(part, np.maximum(label, 0), axis=1)[:, 0]
        logprobs[rows], entropies[rows] = at * has_target, entropy * has_target
        if upstream is None:
            continue
        dlogprob, dentropy = (x[rows, None].astype(part.dtype) for x in upstream)
        np.multiply(p, -dentropy * (finite + entropy[:, None]) - dlogprob, out=part)
        np.put_along_axis(part, label, np.take_along_axis(part, label, axis=1) + dlogprob, axis=1)
        part *= inverse
    return logprobs, entropies
