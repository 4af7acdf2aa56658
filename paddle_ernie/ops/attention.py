"""Causal attention with grouped queries inside documents. Called by the model's attention layer.

    qkv [B, S, H + 2G, d]      H query heads, then G key heads, then G value heads

              keys of the block's documents, up to its last query
                 +---------------------------+
    R * Q rows   | scores, softmax in place  | @ V  ->  out
    of queries   +---------------------------+

One block is Q consecutive queries of the R = H / G heads that share a key head. Keys after the
block and keys of documents that end before it are not touched, and a block's scores stay in the
cache: whole [B, H, S, S] score tensors would cost several passes over main memory in each
direction. The backward pass computes the scores again from the kept log-sum-exp.

The kernel (csrc/cpu/attention.h) gives a query the same bits whatever lies beside it, in a cache
(`paged_attention`) or not. Here is what runs without it.
Softmax in fp32. Letters: B batch, S sequence, H query heads, G key heads, d head width.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, tensor, view

QUERY_ROWS = 256
"""R * Q: enough for an efficient product, few enough that scores over 512 keys take half a MB."""

FORMATS = ("fp32", "bf16")
"""In the order of the kernels' codes."""


def attention(
    qkv_BSNd: paddle.Tensor,
    doc_ids_BS: np.ndarray | None,
    num_heads: int,
    num_kv_heads: int,
    format: str = "fp32",
) -> paddle.Tensor:
    """Attend; the result is [B, S, H * d]. `doc_ids_BS` None: each row is one document.

    A document is a run of equal ids in a row. Format "bf16" rounds q, k, v, the softmax's weights
    and their gradients to bf16 where they are multiplied; without the library only q, k and v.
    """
    N = qkv_BSNd.shape[2]
    assert num_heads + 2 * num_kv_heads == N, f"{N} heads, not {num_heads} + 2 * {num_kv_heads}"
    if library.available(qkv_BSNd):
        return _KernelAttention.apply(qkv_BSNd, doc_ids_BS, num_heads, FORMATS.index(format))
    starts = document_starts(doc_ids_BS, qkv_BSNd.shape[:2])
    return _Attention.apply(qkv_BSNd, starts, num_heads, format)


class _KernelAttention(PyLayer):
    @staticmethod
    def forward(ctx, qkv_BSNd, doc_ids_BS, num_heads, format_code):
        if doc_ids_BS is None:
            doc_ids_BS = np.empty(0, np.int64)
        doc_ids = tensor(np.ascontiguousarray(doc_ids_BS, np.int64))
        out_BSD, lse_BSH = library.call(
            "attention_forward", qkv_BSNd, doc_ids, num_heads, format_code
        )
        ctx.save_for_backward(qkv_BSNd, out_BSD.detach())
        ctx.rest = doc_ids, lse_BSH, num_heads, format_code
        return out_BSD

    @staticmethod
    def backward(ctx, dout_BSD):
        qkv_BSNd, out_BSD = ctx.saved_tensor()
        doc_ids, lse_BSH, num_heads, format_code = ctx.rest
        return library.call(
            "attention_backward", qkv_BSNd, doc_ids, out_BSD, lse_BSH, dout_BSD.contiguous(),
            num_heads, format_code,
        )  # fmt: skip


def rounded(array: np.ndarray, format: str) -> np.ndarray:
    """float32 numbers in the precision of `format`, to nearest even. Other types stay as is."""
    if format == "fp32" or array.dtype != np.float32:
        return array
    bits = array.view(np.uint32)
    result = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(array), result.view(np.float32), array)


def document_starts(doc_ids_BS: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    """For each position the position where its document begins, int64 [B, S]."""
    starts = np.zeros(shape, np.int64)
    if doc_ids_BS is not None:
        changed = doc_ids_BS[:, 1:] != doc_ids_BS[:, :-1]
        starts[:, 1:] = np.where(changed, np.arange(1, shape[1]), 0)
        np.maximum.accumulate(starts, axis=1, out=starts)
    return starts


class Block(NamedTuple):
    """Queries [begin, end) of a row see keys [first_key, end)."""

    begin: int
    end: int
    first_key: int


def query_blocks(starts_S: np.ndarray, queries_per_block: int) -> Iterator[Block]:
    """The blocks of one row."""
    for begin in range(0, len(starts_S), queries_per_block):
        end = min(begin + queries_per_block, len(starts_S))
        yield Block(begin, end, int(starts_S[begin]))


def masked_scores(
    query_QRd: np.ndarray, keys_Kd: np.ndarray, block: Block, starts_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(scaled queries [R*Q, d], scores [R, Q, K] with -inf where a query may not look)."""
    Q, R, d = query_QRd.shape
    scale = query_QRd.dtype.type(d**-0.5)
    scaled = np.multiply(query_QRd.transpose(1, 0, 2), scale, order="C").reshape(R * Q, d)
    scores = view(paddle.matmul(tensor(scaled), tensor(keys_Kd), transpose_y=True))
    scores = scores.reshape(R, Q, len(keys_Kd))
    if Q > 1:
        scores[:, :, len(keys_Kd) - Q :] += _future_mask(Q)
    # Queries of later documents in the block do not see what lies before their document.
    inside = starts_S[block.begin : block.end]
    for first in np.flatnonzero(np.diff(inside)) + 1:
        scores[:, first:, : inside[first] - block.first_key] = -np.inf
    return scaled, scores


@lru_cache(maxsize=8)
def _future_mask(queries: int) -> np.ndarray:
    """float32 [Q, Q], -inf above the diagonal. The same for every full block."""
    return np.triu(np.full((queries, queries), -np.inf, np.float32), 1)


def attend_block(
    query_QRd: np.ndarray,
    keys_Kd: np.ndarray,
    values_Kd: np.ndarray,
    block: Block,
    starts_S: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(output [R, Q, d], log-sum-exp [R, Q]) of one block and one key head."""
    Q, R, d = query_QRd.shape
    _, scores = masked_scores(query_QRd, keys_Kd, block, starts_S)
    peak = scores.max(axis=-1, keepdims=True)
    scores -= peak
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    weights = tensor(scores.reshape(R * Q, -1))
    output = view(paddle.matmul(weights, tensor(values_Kd))).reshape(R, Q, d)
    output /= total  # after the product: d columns to divide instead of K
    return output, (peak + np.log(total))[..., 0]


def _by_head(array_SNd: np.ndarray) -> np.ndarray:
    """[S, N, d] -> contiguous [N, S, d]."""
    return np.ascontiguousarray(array_SNd.transpose(1, 0, 2))


class _Attention(PyLayer):
    @staticmethod
    def forward(ctx, qkv_BSNd, starts_BS, H, format):
        B, S, N, d = qkv_BSNd.shape
        G = (N - H) // 2
        out_BSD = empty((B, S, H * d), qkv_BSNd)
        qkv = rounded(view(qkv_BSNd), format)
        out = view(out_BSD).reshape(B, S, G, H // G, d)
        lse_BGRS = np.empty((B, G, H // G, S), qkv.dtype)
        for row in range(B):
            keys, values = _by_head(qkv[row, :, H : H + G]), _by_head(qkv[row, :, H + G :])
            query = qkv[row, :, :H].reshape(S, G, H // G, d)
            for block in query_blocks(starts_BS[row], max(1, QUERY_ROWS * G // H)):
                at, seen = slice(block.begin, block.end), slice(block.first_key, block.end)
                for head in range(G):
                    output, lse_BGRS[row, head, :, at] = attend_block(
                        query[at, head], keys[head, seen], values[head, seen],
                        block, starts_BS[row],
                    )  # fmt: skip
                    out[row, at, head] = output.transpose(1, 0, 2)
        ctx.save_for_backward(qkv_BSNd, out_BSD.detach())
        ctx.starts, ctx.lse, ctx.num_heads, ctx.format = starts_BS, lse_BGRS, H, format
        return out_BSD

    @staticmethod
    def backward(ctx, dout_BSD):
        qkv_BSNd, out_BSD = ctx.saved_tensor()
        B, S, N, d = qkv_BSNd.shape
        H = ctx.num_heads
        G = (N - H) // 2
        dqkv_BSNd = empty(qkv_BSNd.shape, qkv_BSNd)
        qkv, dqkv = rounded(view(qkv_BSNd), ctx.format), view(dqkv_BSNd)
        out, dout = (view(t).reshape(B, S, G, H // G, d) for t in (out_BSD, dout_BSD))
        for row in range(B):
            _backward_row(
                qkv[row], dqkv[row], out[row], dout[row], ctx.lse[row], ctx.starts[row], H
            )
        return dqkv_BSNd


def _backward_row(
    qkv_SNd: np.ndarray,
    dqkv_SNd: np.ndarray,
    out_SGRd: np.ndarray,
    dout_SGRd: np.ndarray,
    lse_GRS: np.ndarray,
    starts_S: np.ndarray,
    H: int,
) -> None:
    """Fill the gradient of one row.

    With P the probabilities: dV = P^T dO, dS = P * (dO V^T - sum(dO * O)), dQ = dS K, dK = dS^T Q.
    """
    S, G, R, d = out_SGRd.shape
    query, dquery = (array[:, :H].reshape(S, G, R, d) for array in (qkv_SNd, dqkv_SNd))
    keys, values = _by_head(qkv_SNd[:, H : H + G]), _by_head(qkv_SNd[:, H + G :])
    dkeys, dvalues = np.zeros_like(keys), np.zeros_like(values)
    delta_GRS = np.einsum("sgrd,sgrd->grs", out_SGRd, dout_SGRd)
    for block in query_blocks(starts_S, max(1, QUERY_ROWS // R)):
        at, seen = slice(block.begin, block.end), slice(block.first_key, block.end)
        for head in range(G):
            scaled, scores = masked_scores(query[at, head], keys[head, seen], block, starts_S)
            scores -= lse_GRS[head, :, at, None]
            weights = np.exp(scores, out=scores).reshape(len(scaled), -1)
            douts = np.ascontiguousarray(dout_SGRd[at, head].transpose(1, 0, 2))
            douts = tensor(douts.reshape(-1, d))
            dscores = view(paddle.matmul(douts, tensor(values[head, seen]), transpose_y=True))
            dscores -= delta_GRS[head, :, at].reshape(-1, 1)
            dscores *= weights
            dvalues[head, seen] += view(paddle.matmul(tensor(weights), douts, transpose_x=True))
            dscores = tensor(dscores)
            dkeys[head, seen] += view(paddle.matmul(dscores, tensor(scaled), transpose_x=True))
            dq = view(paddle.matmul(dscores, tensor(keys[head, seen])))
            dq *= dq.dtype.type(d**-0.5)
            dquery[at, head] = dq.reshape(R, -1, d).transpose(1, 0, 2)
    dqkv_SNd[:, H : H + G], dqkv_SNd[:, H + G :] = (
        dkeys.transpose(1, 0, 2),
        dvalues.transpose(1, 0, 2),
    )
