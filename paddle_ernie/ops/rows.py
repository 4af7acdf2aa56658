"""Take some rows of a batch out and put them back. Called by the model around every layer that a
plan lets some rows skip.

    hidden [B, S, D] --split_rows--> active [A, S, D] -> layer --\\
                         \\---------> rest [B-A, S, D] ----------merge_rows--> hidden [B, S, D]

Splitting and merging copy each row once in either direction of differentiation. Gathering and
scattering the active rows instead would zero-fill and add whole batches in the backward pass,
so that a layer with one active row would cost as much memory traffic as a full one.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, tensor, view, wanted


def split_rows(
    hidden_BSD: paddle.Tensor, rows: np.ndarray, rest: np.ndarray
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """(hidden[rows], hidden[rest]); together they list every row once. Second is None if none."""
    if not len(rest):
        return _TakeRows.apply(hidden_BSD, rows), None
    return _SplitRows.apply(hidden_BSD, rows, rest)


def merge_rows(
    active: paddle.Tensor, rest: paddle.Tensor | None, rows: np.ndarray, rest_rows: np.ndarray
) -> paddle.Tensor:
    """The inverse of `split_rows`."""
    if rest is None:
        return _TakeRows.apply(active, np.argsort(rows))
    return _MergeRows.apply(active, rest, rows, rest_rows)


def _take(source: paddle.Tensor, rows: np.ndarray) -> paddle.Tensor:
    if library.available(source):
        return library.call("gather_rows", source, _indices(rows))
    result = empty((len(rows), *source.shape[1:]), source)
    np.take(view(source), rows, axis=0, out=view(result), mode="clip")
    return result


def _join(
    active: paddle.Tensor, rest: paddle.Tensor, rows: np.ndarray, rest_rows: np.ndarray
) -> paddle.Tensor:
    if library.available(active):
        return library.call("join_rows", active, rest, _indices(rows), _indices(rest_rows))
    result = empty((len(rows) + len(rest_rows), *active.shape[1:]), active)
    array = view(result)
    array[rows], array[rest_rows] = view(active), view(rest)
    return result


def _indices(rows: np.ndarray) -> paddle.Tensor:
    return tensor(np.ascontiguousarray(rows, np.int64))


class _TakeRows(PyLayer):
    """A permutation of the rows."""

    @staticmethod
    def forward(ctx, source, rows):
        ctx.rows = rows
        return _take(source, rows)

    @staticmethod
    def backward(ctx, gradient):
        return _take(gradient, np.argsort(ctx.rows))


class _SplitRows(PyLayer):
    @staticmethod
    def forward(ctx, source, rows, rest):
        ctx.rows, ctx.rest = rows, rest
        return _take(source, rows), _take(source, rest)

    @staticmethod
    def backward(ctx, dactive, drest):
        return _join(dactive, drest, ctx.rows, ctx.rest)


class _MergeRows(PyLayer):
    @staticmethod
    def forward(ctx, active, rest, rows, rest_rows):
        ctx.rows, ctx.rest = rows, rest_rows
        ctx.wanted = wanted(active, rest)
        return _join(active, rest, rows, rest_rows)

    @staticmethod
    def backward(ctx, gradient):
        return tuple(
            _take(gradient, rows) if wanted else None
            for rows, wanted in zip((ctx.rows, ctx.rest), ctx.wanted, strict=True)
        )
