"""The three products of a linear map, on the compiled library or plainly. Called by `linear` and
`grouped_linear`; a single map is a stack of one.

    forward  y  = x W        wgrad  dW = x^T dy        dgrad  dx = dy W^T

`transposed` weights are stored [out, in].
"""

import numpy as np
import paddle

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import contiguous, tensor
from paddle_ernie.ops.numerics import FORMATS, Numerics, Recipe
from paddle_ernie.ops.quantise import (
    dequantise_blocks,
    dequantise_rows,
    quantise_blocks,
    quantise_rows,
    round_bf16,
)


def packed(
    weight: paddle.Tensor, transposed: bool, format: str, numerics: Numerics
) -> paddle.Tensor:
    """The weight as the right operand of `format`, [K, N] or, if `transposed`, [N, K] in memory."""
    scales = numerics.recipe.power_of_two_scales
    arguments = (FORMATS.index(format), transposed, scales)
    return numerics.packs.get(
        weight, arguments, lambda: library.call("pack_weight", contiguous(weight), *arguments)
    )


def _multiply(
    x_NK: paddle.Tensor,
    counts_E: np.ndarray,
    weight: paddle.Tensor,
    transposed: bool,
    format: str,
    numerics: Numerics,
) -> paddle.Tensor:
    width = weight.shape[-2 if transposed else -1]
    return library.call(
        "grouped_linear",
        contiguous(x_NK),
        tensor(counts_E),
        packed(weight, transposed, format, numerics),
        width,
        FORMATS.index(format),
        numerics.recipe.power_of_two_scales,
    )


def forward(
    x_NI: paddle.Tensor,
    counts_E: np.ndarray,
    weight: paddle.Tensor,
    transposed: bool,
    numerics: Numerics,
) -> paddle.Tensor:
    """Rows of group e times weight[e], [N, O]. `counts_E` is int64."""
    return _multiply(x_NI, counts_E, weight, transposed, numerics.recipe.forward, numerics)


def dgrad(
    dy_NO: paddle.Tensor,
    counts_E: np.ndarray,
    weight: paddle.Tensor,
    transposed: bool,
    numerics: Numerics,
) -> paddle.Tensor:
    """[N, I]. Packs the values that `forward` packed, the other way round."""
    return _multiply(dy_NO, counts_E, weight, not transposed, numerics.recipe.dgrad, numerics)


def wgrad(
    left_NI: paddle.Tensor, right_NO: paddle.Tensor, counts_E: np.ndarray, recipe: Recipe
) -> paddle.Tensor:
    """left^T right of each group, [E, I, O]; zero for empty groups."""
    return library.call(
        "grouped_wgrad",
        contiguous(left_NI),
        contiguous(right_NO),
        tensor(counts_E),
        FORMATS.index(recipe.wgrad),
        recipe.power_of_two_scales,
    )


def plain(
    left: paddle.Tensor,
    right: paddle.Tensor,
    format: str,
    power_of_two: bool = False,
    *,
    transpose_left: bool = False,
    transpose_right: bool = False,
    right_is_weight: bool = True,
) -> paddle.Tensor:
    """Without the library: Paddle's product of the rounded operands."""
    if format == "bf16":
        left, right = _as_bf16(left), _as_bf16(right)
    elif format == "fp8":
        left = _in_tiles(left, transpose_left, power_of_two)
        if right_is_weight:
            codes, scales = quantise_blocks(right, power_of_two=power_of_two)
            right = dequantise_blocks(codes, scales).astype(right.dtype)
        else:
            right = _in_tiles(right, not transpose_right, power_of_two)
    return paddle.matmul(left, right, transpose_x=transpose_left, transpose_y=transpose_right)


def _as_bf16(x: paddle.Tensor) -> paddle.Tensor:
    return round_bf16(x).astype(x.dtype)


def _in_tiles(x: paddle.Tensor, down: bool, power_of_two: bool) -> paddle.Tensor:
    """FP8 and back, in tiles of 128 along the rows, or `down` the columns."""
    rows = x.T.contiguous() if down else x
    values = dequantise_rows(*quantise_rows(rows, power_of_two=power_of_two)).astype(x.dtype)
    return values.T.contiguous() if down else values
