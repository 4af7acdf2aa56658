"""Block-scaled FP8 (E4M3), the recipe of FP8 linear layers and of FP8 checkpoints.

    x [T, K]    --quantise_rows-->    codes uint8 [T, K], scales [T, ceil(K / 128)]
    w [R, C]    --quantise_blocks-->  codes uint8 [R, C], scales [ceil(R / 128), ceil(C / 128)]

Values are first rounded to bf16. The scale of a 1 x 128 tile (128 x 128 block) is max|x| / 448, at
least 2^-126, and 1 if all are zero; `power_of_two` raises it to the next power of two, of which the
exponent byte, UE8M0, says all. The code is x / scale, to nearest even, saturating at 448. A NaN
becomes 0x7f and does not count in the maximum; an infinity makes its tile read back as NaN.

Linear layers quantise inside their kernels, with the same C++ functions; these operators serve
whoever stores, compares or inspects codes. None has a gradient. Paddle's own cast is no
substitute: on CPU it turns 465 into NaN, and NaN into 448.
"""

import numpy as np
import paddle

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import tensor, view

BLOCK = 128  # as DeepSeek-V3 and the checkpoints that carry `weight_block_size: [128, 128]`
E4M3_MAX = 448.0
SMALLEST_SCALE = np.float32(2.0**-126)  # codes of tiny values stay finite
NAN_CODE = 0x7F


def _code_values() -> np.ndarray:
    """The value of each of the 256 codes: 1 sign, 4 exponent (bias 7) and 3 mantissa bits."""
    codes = np.arange(256)
    exponents, mantissas = (codes >> 3) & 15, codes & 7
    subnormals = np.ldexp(mantissas / 8, -6)
    magnitudes = np.where(exponents == 0, subnormals, np.ldexp(1 + mantissas / 8, exponents - 7))
    magnitudes[(codes & NAN_CODE) == NAN_CODE] = np.nan
    return np.where(codes < 128, magnitudes, -magnitudes).astype(np.float32)


_VALUES = _code_values()


def quantise_rows(
    x_TK: paddle.Tensor, *, power_of_two: bool = False
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Codes uint8 [T, K] and fp32 scales [T, ceil(K / 128)] of tiles along each row."""
    if library.available(x_TK):
        return tuple(library.call("quantise_rows", x_TK, power_of_two))
    codes, scales = _quantise(view(x_TK)[None], 1, power_of_two)
    return tensor(codes[0]), tensor(scales[0])


def quantise_blocks(
    weight: paddle.Tensor, *, power_of_two: bool = False
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Codes and scales of the 128 x 128 blocks of a matrix [R, C], or of experts' [E, R, C]."""
    weight_ERC = weight if weight.ndim == 3 else weight.unsqueeze(0)
    if library.available(weight):
        codes_ERC, scales_Erc = library.call("quantise_blocks", weight_ERC, power_of_two)
    else:
        codes_ERC, scales_Erc = map(tensor, _quantise(view(weight_ERC), BLOCK, power_of_two))
    if weight.ndim == 3:
        return codes_ERC, scales_Erc
    return codes_ERC.squeeze(0), scales_Erc.squeeze(0)


def dequantise_rows(codes_TK: paddle.Tensor, scales_Tk: paddle.Tensor) -> paddle.Tensor:
    """fp32 [T, K]: each value times the scale of its tile."""
    return _dequantise(codes_TK.unsqueeze(0), scales_Tk, 1).squeeze(0)


def dequantise_blocks(codes: paddle.Tensor, scales: paddle.Tensor) -> paddle.Tensor:
    """fp32 [R, C] or [E, R, C]: each value times the scale of its block."""
    if codes.ndim == 3:
        return _dequantise(codes, scales, BLOCK)
    return _dequantise(codes.unsqueeze(0), scales, BLOCK).squeeze(0)


def to_e4m3(x: paddle.Tensor) -> paddle.Tensor:
    """E4M3 codes (uint8, same shape) of fp32 values: nearest even, saturating; any NaN is 0x7f."""
    if library.available(x):
        return library.call("to_e4m3", x)
    return tensor(_encode(view(x).astype(np.float32)))


def from_e4m3(codes: paddle.Tensor) -> paddle.Tensor:
    """The fp32 values of codes."""
    if codes.place.is_cpu_place() and library.loaded():
        return library.call("from_e4m3", codes)
    return tensor(_VALUES[view(codes)])


def round_bf16(x: paddle.Tensor) -> paddle.Tensor:
    """Values rounded to bf16 (nearest even), still fp32."""
    if library.available(x):
        return library.call("round_bf16", x)
    return tensor(_round_bf16(view(x).astype(np.float32)))


def scales_to_ue8m0(scales: paddle.Tensor) -> paddle.Tensor:
    """The exponent bytes of power-of-two scales; infinity and NaN are 255."""
    bits = np.ascontiguousarray(view(scales)).view(np.uint32)
    exponents = (bits >> 23).astype(np.uint8)
    wrong = (bits != exponents.astype(np.uint32) << 23) & (exponents != 255)
    if wrong.any():
        raise ValueError(
            f"scales_to_ue8m0: found the scale {view(scales)[wrong][0]!r}, expected powers of two "
            "from 2^-126 up; quantise with power_of_two=True"
        )
    return tensor(exponents)


def scales_from_ue8m0(exponents: paddle.Tensor) -> paddle.Tensor:
    """fp32 powers of two: 2^(byte - 127); 255 is NaN."""
    values = np.ldexp(np.float32(1), view(exponents).astype(np.int32) - 127)
    values[view(exponents) == 255] = np.nan
    return tensor(values)


def _dequantise(
    codes_ERC: paddle.Tensor, scales: paddle.Tensor, rows_per_block: int
) -> paddle.Tensor:
    if library.available(scales):
        return library.call("dequantise", codes_ERC, scales, rows_per_block)
    codes = view(codes_ERC)
    down, across = -(-codes.shape[1] // rows_per_block), -(-codes.shape[2] // BLOCK)
    scales_Erc = view(scales).reshape(len(codes), down, across)
    return tensor(_VALUES[codes] * _spread(scales_Erc, codes.shape, rows_per_block))


def _quantise(
    x_ERC: np.ndarray, rows_per_block: int, power_of_two: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales [E, ceil(R / rows_per_block), ceil(C / 128)], without the library."""
    rounded = _round_bf16(x_ERC.astype(np.float32))
    E, R, C = rounded.shape
    down, across = -(-R // rows_per_block), -(-C // BLOCK)
    padded = np.zeros((E, down * rows_per_block, across * BLOCK), np.float32)
    padded[:, :R, :C] = np.abs(np.nan_to_num(rounded, nan=0.0, posinf=np.inf, neginf=np.inf))
    blocks = padded.reshape(E, down, rows_per_block, across, BLOCK)
    amax = blocks.max(axis=(2, 4), initial=0)
    scales = np.maximum(amax / np.float32(E4M3_MAX), SMALLEST_SCALE)
    scales = np.where(amax == 0, np.float32(1), scales)
    if power_of_two:
        bits = (scales.view(np.uint32) + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000)
        scales = bits.view(np.float32)
    with np.errstate(invalid="ignore"):  # inf / inf
        return _encode(rounded / _spread(scales, rounded.shape, rows_per_block)), scales


def _spread(scales_Erc: np.ndarray, shape: tuple[int, ...], rows_per_block: int) -> np.ndarray:
    """Each element's scale."""
    spread = scales_Erc.repeat(rows_per_block, axis=1).repeat(BLOCK, axis=2)
    return spread[:, : shape[1], : shape[2]]


def _round_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def _encode(x: np.ndarray) -> np.ndarray:
    magnitude = np.minimum(np.abs(x), np.float32(E4M3_MAX))
    _, exponent = np.frexp(magnitude)  # magnitude = fraction in [1/2, 1) times 2^exponent
    unit = np.ldexp(np.float32(1), np.maximum(exponent - 1, -6) - 3)
    codes = np.searchsorted(_VALUES[:NAN_CODE], np.rint(magnitude / unit) * unit).astype(np.uint8)
    codes |= np.signbit(x).astype(np.uint8) << 7
    codes[np.isnan(x)] = NAN_CODE
    return codes
