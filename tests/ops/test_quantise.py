import itertools

import ml_dtypes
import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops.quantise import (
    dequantise_blocks,
    dequantise_rows,
    from_e4m3,
    quantise_blocks,
    quantise_rows,
    round_bf16,
    scales_from_ue8m0,
    scales_to_ue8m0,
    to_e4m3,
)
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, same_bits

PLAIN = -2  # no library
BLOCK = 128
ALL_BF16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


@pytest.fixture(params=[PLAIN, PORTABLE, AVX2, AVX512], ids=["plain", "portable", "avx2", "avx512"])
def level(request, monkeypatch):
    """Runs the test at each instruction set, and without the library."""
    if request.param == PLAIN:
        monkeypatch.setattr(library, "available", lambda x: False)
        monkeypatch.setattr(library, "loaded", lambda: False)
        yield
    else:
        with running(level=request.param):
            yield


def expected_codes(x: np.ndarray) -> np.ndarray:
    """ml_dtypes' cast, which overflows to NaN, made saturating; every NaN is 0x7f."""
    with np.errstate(invalid="ignore"):
        codes = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


def expected_bf16(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def expected_blocks(
    x: np.ndarray, rows_per_block: int, power_of_two: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The recipe, block by block."""
    rounded = expected_bf16(x)
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((-(-x.shape[0] // rows_per_block), -(-x.shape[1] // BLOCK)), np.float32)
    for i, j in np.ndindex(scales.shape):
        at = (
            slice(i * rows_per_block, (i + 1) * rows_per_block),
            slice(j * BLOCK, (j + 1) * BLOCK),
        )
        scales[i, j] = reference.fp8_scale(rounded[at], power_of_two)
        with np.errstate(invalid="ignore"):
            codes[at] = expected_codes(rounded[at] / scales[i, j])
    return codes, scales


def test_all_codes_decode(level):
    codes = np.arange(256, dtype=np.uint8)
    values = from_e4m3(paddle.to_tensor(codes)).numpy()
    np.testing.assert_array_equal(values, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    number = ~np.isnan(values)
    assert np.array_equal(np.signbit(values)[number], (codes >= 128)[number])


def test_all_bf16_values_encode(level):
    codes = to_e4m3(paddle.to_tensor(ALL_BF16)).numpy()
    assert np.array_equal(codes, expected_codes(ALL_BF16))


def test_a_million_random_values_encode(level, rng):
    bits = rng.integers(0, 1 << 32, 500_000, dtype=np.uint32)
    near = np.exp2(rng.uniform(-12, 10, 500_000)) * rng.choice([-1, 1], 500_000)
    x = np.concatenate([bits.view(np.float32), near.astype(np.float32)])
    assert np.array_equal(to_e4m3(paddle.to_tensor(x)).numpy(), expected_codes(x))


def test_bf16_rounding(level, rng):
    x = rng.integers(0, 1 << 32, 100_001, dtype=np.uint32).view(np.float32)
    ties = ALL_BF16.view(np.uint32) | np.uint32(0x8000)
    for values in (x, ALL_BF16, ties.view(np.float32)):
        rounded = round_bf16(paddle.to_tensor(values)).numpy()
        np.testing.assert_array_equal(rounded, expected_bf16(values))


@settings(max_examples=15)
@given(
    st.integers(0, 5),
    st.integers(1, 300),
    st.floats(-150, 125),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])
def test_rows_and_blocks_follow_the_recipe(level, rows, width, exponent, power_of_two, seed):
    """Over all magnitudes of fp32, with zeros, NaN and infinities strewn in."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) * np.exp2(exponent)
    x = x.astype(np.float32)
    special = rng.random((rows, width))
    for i, value in enumerate((0.0, np.nan, np.inf, -np.inf)):
        x[(special > i / 400) & (special < (i + 1) / 400)] = value
    x[:1] = 0
    tensor = paddle.to_tensor(x)
    with running(level=level):
        for quantise, rows_per_block in ((quantise_rows, 1), (quantise_blocks, BLOCK)):
            codes, scales = quantise(tensor, power_of_two=power_of_two)
            want_codes, want_scales = expected_blocks(x, rows_per_block, power_of_two)
            assert scales.numpy().tobytes() == want_scales.tobytes()
            assert np.array_equal(codes.numpy(), want_codes)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_blocks_that_do_not_divide(level, power_of_two, rng):
    x = (rng.standard_normal((131, 260)) * np.exp(rng.standard_normal((131, 1)))).astype(np.float32)
    x[3] = 0
    for quantise, rows_per_block in ((quantise_rows, 1), (quantise_blocks, BLOCK)):
        codes, scales = quantise(paddle.to_tensor(x), power_of_two=power_of_two)
        want_codes, want_scales = expected_blocks(x, rows_per_block, power_of_two)
        assert np.array_equal(scales.numpy(), want_scales)
        assert np.array_equal(codes.numpy(), want_codes)


def test_corrected_products_round_like_divisions(level):
    """Every mantissa of a tile's largest value with every other value down to 2^-20 of it."""
    mantissas = 1 + np.arange(128) / 128
    others = np.exp2(1.0 - np.arange(22))[:, None] * mantissas
    tiles = np.empty((128, 22, 2, BLOCK), np.float32)
    tiles[..., :64] = others.reshape(22, 2, 64)
    tiles[..., 64:] = 2 * mantissas[:, None, None, None]
    x = tiles.reshape(-1, BLOCK)
    codes, scales = quantise_rows(paddle.to_tensor(x))
    assert np.array_equal(codes.numpy(), expected_codes(x / scales.numpy()))


@pytest.mark.parametrize("value", [1e-30, 1e-24, 1e-18, 1e30, 1e37, 3e38])
def test_largest_values_at_the_edges_of_the_fast_path(level, value, rng):
    x = (value * rng.uniform(-1, 1, (40, BLOCK))).astype(np.float32)
    codes, scales = quantise_rows(paddle.to_tensor(x))
    want_codes, want_scales = expected_blocks(x, 1, False)
    assert np.array_equal(scales.numpy(), want_scales)
    assert np.array_equal(codes.numpy(), want_codes)


def test_dequantised_values_are_products(level, rng):
    x = paddle.to_tensor(rng.standard_normal((200, 300)).astype(np.float32))
    codes, scales = quantise_rows(x)
    values = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    spread = scales.numpy().repeat(BLOCK, axis=1)[:, :300]
    assert np.array_equal(dequantise_rows(codes, scales).numpy(), values * spread)
    codes, scales = quantise_blocks(x)
    values = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    spread = scales.numpy().repeat(BLOCK, axis=0)[:200].repeat(BLOCK, axis=1)[:, :300]
    back = dequantise_blocks(codes, scales).numpy()
    assert np.array_equal(back, values * spread)
    np.testing.assert_allclose(back, x.numpy(), rtol=2**-4 + 2**-8, atol=2**-9 * scales.max())


def test_experts_are_matrices_of_their_own(level, rng):
    weight = paddle.to_tensor(rng.standard_normal((3, 130, 140)).astype(np.float32))
    codes, scales = quantise_blocks(weight)
    assert scales.shape == [3, 2, 2]
    for expert in range(3):
        alone = quantise_blocks(weight[expert])
        assert same_bits(codes[expert], alone[0])
        assert same_bits(scales[expert], alone[1])
        assert same_bits(dequantise_blocks(codes, scales)[expert], dequantise_blocks(*alone))


def test_an_infinity_spoils_its_tile_and_a_nan_only_itself(level):
    x = np.ones((3, 200), np.float32)
    x[0, 5], x[1, 6], x[2, 7] = np.inf, np.nan, 3.4e38  # the last one is infinite in bf16
    codes, scales = quantise_rows(paddle.to_tensor(x))
    bad = np.isnan(dequantise_rows(codes, scales).numpy())
    assert bad[0, :BLOCK].all()
    assert bad[2, :BLOCK].all()
    assert bad[1].nonzero()[0].tolist() == [6]
    assert codes.numpy()[1, 6] == 0x7F
    assert not bad[:, BLOCK:].any()


@pytest.mark.parametrize("shape", [(0, 200), (0, 0), (3, 0)])
def test_nothing_to_quantise(level, shape):
    x = paddle.empty(list(shape))
    codes, scales = quantise_rows(x)
    assert (codes.shape, scales.shape) == (list(shape), [shape[0], -(-shape[1] // BLOCK)])
    assert dequantise_rows(codes, scales).shape == list(shape)
    assert to_e4m3(x).shape == list(shape)


def test_bits_of_a_row_depend_on_nothing_else(rng):
    x = paddle.to_tensor(rng.standard_normal((500, 200)).astype(np.float32))
    for level, threads in itertools.product((PORTABLE, AVX2, AVX512), (1, 3)):
        with running(level=level, threads=threads):
            codes, scales = quantise_rows(x)
            alone = quantise_rows(x[77:78])
        assert same_bits(codes[77:78], alone[0])
        assert same_bits(scales[77:78], alone[1])
        if threads == 1:
            one_thread = codes
    assert same_bits(codes, one_thread)


def test_exponent_bytes_of_scales(level):
    x = np.exp2(np.arange(-140, 128, 3.0)).astype(np.float32).reshape(-1, 1)
    _, scales = quantise_rows(paddle.to_tensor(x), power_of_two=True)
    exponents = scales_to_ue8m0(scales)
    want = np.ascontiguousarray(scales.numpy()).astype(ml_dtypes.float8_e8m0fnu)
    assert np.array_equal(exponents.numpy(), want.view(np.uint8))
    assert same_bits(scales_from_ue8m0(exponents), scales)
    special = scales_from_ue8m0(paddle.to_tensor(np.array([0, 255], np.uint8))).numpy()
    assert special[0] == 2.0**-127
    assert np.isnan(special[1])
    assert scales_to_ue8m0(paddle.to_tensor([np.inf, np.nan])).tolist() == [255, 255]


def test_other_scales_have_no_exponent_byte():
    with pytest.raises(ValueError, match=r"found the scale .*0\.75"):
        scales_to_ue8m0(paddle.to_tensor([1.0, 0.75]))
