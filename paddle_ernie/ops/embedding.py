"""Rows of a table by id. Called by the model for its input tokens.

    ids [T], weight [V, D] -> [T, D]        gradient: dense [V, D], summed in token order

Paddle's own backward pass adds one element at a time.
"""

import numpy as np
import paddle
from paddle.autograd import PyLayer

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, tensor, view
from paddle_ernie.utils.errors import InputError


def embedding(ids_T: np.ndarray, weight_VD: paddle.Tensor) -> paddle.Tensor:
    """weight[ids]; ids are integers in [0, V)."""
    rows = weight_VD.shape[0]
    if ids_T.size and not 0 <= ids_T.min() <= ids_T.max() < rows:
        wrong = int(np.flatnonzero((ids_T < 0) | (ids_T >= rows))[0])
        raise InputError(
            f"embedding: token {wrong} has id {ids_T[wrong]}, but the table has {rows} rows; "
            f"expected ids from 0 to {rows - 1}: do the data and the model share one tokenizer?"
        )
    return _Embedding.apply(np.ascontiguousarray(ids_T, np.int64), weight_VD)


class _Embedding(PyLayer):
    @staticmethod
    def forward(ctx, ids_T, weight_VD):
        ctx.ids, ctx.rows = ids_T, weight_VD.shape[0]
        if library.available(weight_VD):
            return library.call("embedding_forward", tensor(ids_T), weight_VD)
        y_TD = empty((len(ids_T), weight_VD.shape[1]), weight_VD)
        np.take(view(weight_VD), ids_T, axis=0, out=view(y_TD), mode="clip")
        return y_TD

    @staticmethod
    def backward(ctx, dy_TD):
        if library.available(dy_TD):
            return library.call("embedding_backward", tensor(ctx.ids), dy_TD, ctx.rows)
        dweight_VD = paddle.zeros([ctx.rows, dy_TD.shape[1]], dtype=dy_TD.dtype)
        np.add.at(view(dweight_VD), ctx.ids, view(dy_TD))
        return dweight_VD
