"""Matrix products of the compiled library, at every instruction set that this processor has."""

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import library, reference
from paddle_ernie.ops.numerics import FORMATS
from tests.ops.kernels import same_bits

TILE, BLOCK = (1, 128), (128, 128)
BOUNDARIES = (0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 200, 256, 257)
"""Around the sizes of tiles, panels and scale blocks."""


@pytest.fixture(params=library.ISA_NAMES, scope="module", autouse=True)
def level(request):
    """Runs each test at each instruction set."""
    best = library.ISA_NAMES.index(library.isa())
    if library.ISA_NAMES.index(request.param) > best:
        pytest.skip(f"this processor lacks {request.param}")
    with library.using(isa=request.param):
        yield request.param


def tensor(array: np.ndarray) -> paddle.Tensor:
    return paddle.to_tensor(np.ascontiguousarray(array))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def pack(weight: np.ndarray, format: str, transposed: bool = False, power_of_two: bool = False):
    arguments = FORMATS.index(format), transposed, power_of_two
    return library.call("pack_weight", tensor(weight), *arguments)


def product(x, counts, packed, width: int, format: str, power_of_two: bool = False):
    counts = tensor(np.asarray(counts, np.int64))
    arguments = width, FORMATS.index(format), power_of_two
    return library.call("grouped_linear", tensor(x), counts, packed, *arguments)


def weight_gradient(x, dy, counts, format: str, power_of_two: bool = False) -> np.ndarray:
    counts = tensor(np.asarray(counts, np.int64))
    arguments = FORMATS.index(format), power_of_two
    return library.call("grouped_wgrad", tensor(x), tensor(dy), counts, *arguments).numpy()


def assert_close(found: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """`found` is left @ right with float32 sums.

    Sums of K products drift by about sqrt(K) halves of a unit of 2^-23; 8 more for scales and
    luck. A wrongly rounded operand is off by 2^-9 (bf16) or 2^-4 (FP8).
    """
    tolerance = 2.0**-23 * (np.sqrt(left.shape[1]) + 8)
    size = np.abs(left) @ np.abs(right)
    assert (np.abs(found - left @ right) <= tolerance * size + 1e-37).all()


shapes = st.tuples(*[st.sampled_from(BOUNDARIES) | st.integers(1, 70)] * 3)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=20, deadline=None)
@given(shape=shapes, transposed=st.booleans(), power_of_two=st.booleans(), seed=st.integers(0, 99))
def test_product(format, shape, transposed, power_of_two, seed):
    M, N, K = shape
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, M, K), normal(rng, K, N)
    packed = pack(weight.T if transposed else weight, format, transposed, power_of_two)
    y = product(x, [M], packed, N, format, power_of_two)
    left = reference.operand(x, format, TILE, power_of_two)
    assert_close(y.numpy(), left, reference.operand(weight, format, BLOCK, power_of_two))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.sampled_from(BOUNDARIES) | st.integers(0, 40), min_size=1, max_size=5),
    sizes=st.tuples(*[st.sampled_from(BOUNDARIES[1:]) | st.integers(1, 70)] * 2),
    power_of_two=st.booleans(),
    seed=st.integers(0, 99),
)
def test_weight_gradient(format, counts, sizes, power_of_two, seed):
    rng = np.random.default_rng(seed)
    x, dy = normal(rng, sum(counts), sizes[0]), normal(rng, sum(counts), sizes[1])
    dw = weight_gradient(x, dy, counts, format, power_of_two)
    for found, stop, count in zip(dw, np.cumsum(counts), counts, strict=True):
        rows = slice(stop - count, stop)
        left = reference.operand(x[rows].T, format, TILE, power_of_two)
        right = reference.operand(dy[rows], format, TILE[::-1], power_of_two)
        assert_close(found, left, right)
        assert count or not found.any()


@pytest.mark.parametrize("format", FORMATS)
def test_long_and_tall(format, rng):
    """More than one block of K, of rows, and rows whose addresses collide in a cache."""
    x, weight = normal(rng, 600, 1024), normal(rng, 1024, 72)
    y = product(x, [600], pack(weight, format), 72, format)
    left = reference.operand(x, format, TILE)
    assert_close(y.numpy(), left, reference.operand(weight, format, BLOCK))
    dw = weight_gradient(x[:, :300], x[:, :72], [600], format)[0]
    left = reference.operand(x[:, :300].T, format, TILE)
    assert_close(dw, left, reference.operand(x[:, :72], format, TILE[::-1]))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=10, deadline=None)
@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    sizes=st.tuples(st.sampled_from((40, 128, 300, 600)), st.sampled_from((33, 64, 200))),
    seed=st.integers(0, 99),
)
def test_bits_do_not_depend_on_company(format, counts, sizes, seed):
    """A row alone, in a group, in another group's place, by 1, 2 or 3 threads: the same bits."""
    (K, N), rng = sizes, np.random.default_rng(seed)
    x, weights = normal(rng, sum(counts), K), normal(rng, len(counts), K, N)
    packed = pack(weights, format)
    together = product(x, counts, packed, N, format)
    for threads in (1, 2, 3):
        with library.using(threads=threads):
            assert same_bits(product(x, counts, packed, N, format), together)
            assert same_bits(pack(weights, format), packed)
    for e, (stop, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        single = pack(weights[e], format)
        if not count:
            continue
        start = stop - count
        for first, last in {(start, stop), (start, start + 1), (start + count // 2, stop)}:
            alone = product(x[first:last], [last - first], single, N, format)
            assert same_bits(alone, together[first:last])


@pytest.mark.parametrize("format", FORMATS)
def test_weight_gradient_bits_do_not_depend_on_threads(format, rng):
    x, dy, counts = normal(rng, 700, 200), normal(rng, 700, 130), [10, 0, 530, 160]
    with library.using(threads=1):
        expected = weight_gradient(x, dy, counts, format)
    for threads in (2, 3):
        with library.using(threads=threads):
            np.testing.assert_array_equal(weight_gradient(x, dy, counts, format), expected)


def values_in(packed, width: int, rows: int, format: str, power_of_two: bool) -> np.ndarray:
    """What a packed weight holds: each row of a unit matrix picks one of its rows."""
    units = np.eye(rows, dtype=np.float32)
    return product(units, [rows], packed, width, format, power_of_two).numpy()


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=10, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 260), st.integers(1, 260)),
    power_of_two=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_layouts_hold_the_same_values(format, sizes, power_of_two, seed):
    """The gradient of activations multiplies by what the forward product multiplied by."""
    weight = normal(np.random.default_rng(seed), *sizes)
    one_way = pack(weight, format, False, power_of_two)
    other_way = pack(weight, format, True, power_of_two)
    forward = values_in(one_way, sizes[1], sizes[0], format, power_of_two)
    backward = values_in(other_way, sizes[0], sizes[1], format, power_of_two)
    np.testing.assert_array_equal(forward, backward.T)


def values_of_rows(rows: np.ndarray, power_of_two: bool) -> np.ndarray:
    packed = pack(np.eye(rows.shape[1], dtype=np.float32), "fp8", False, power_of_two)
    return product(rows, [len(rows)], packed, rows.shape[1], "fp8", power_of_two).numpy()


@settings(max_examples=15, deadline=None)
@given(
    exponents=st.lists(st.integers(-120, 126), min_size=3, max_size=3),
    power_of_two=st.booleans(),
    seed=st.integers(0, 99),
)
def test_fp8_codes_at_any_magnitude(exponents, power_of_two, seed):
    """Blocks of tiny, ordinary and huge values, also when they meet in one vector."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(normal(rng, 128, 3 * 128), np.repeat(exponents, 128), dtype=np.float64)
    x = np.clip(x, -3e38, 3e38).astype(np.float32)
    rows = np.concatenate(np.split(x, 3, axis=1))  # one block each
    picked = values_of_rows(rows, power_of_two)
    expected = reference.operand(rows, "fp8", TILE, power_of_two)
    np.testing.assert_allclose(picked, expected, rtol=1e-6, atol=1e-37)
    for transposed in (False, True):
        packed = pack(x.T if transposed else x, "fp8", transposed, power_of_two)
        found = values_in(packed, 3 * 128, 128, "fp8", power_of_two)
        expected = reference.operand(x, "fp8", BLOCK, power_of_two)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)
    unit_gradient = weight_gradient(np.eye(128, dtype=np.float32), x, [128], "fp8", power_of_two)[0]
    expected = reference.operand(x, "fp8", TILE[::-1], power_of_two)
    np.testing.assert_allclose(unit_gradient, expected, rtol=1e-6, atol=1e-37)


NANS = (np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001], np.uint32)).view(np.float32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [*NANS, np.inf, -np.inf])
def test_what_depends_on_a_bad_value_is_bad(format, value, rng):
    x, weight = normal(rng, 40, 150), normal(rng, 150, 70)
    clean = product(x, [40], pack(weight, format), 70, format).numpy()
    x[5, 140] = value
    y = product(x, [40], pack(weight, format), 70, format).numpy()
    assert not np.isfinite(y[5]).any()
    np.testing.assert_array_equal(np.delete(y, 5, 0), np.delete(clean, 5, 0))
    dw = weight_gradient(x, clean, [40], format)[0]
    assert not np.isfinite(dw[140]).any()
    assert np.isfinite(np.delete(dw, 140, 0)).all()
    dw = weight_gradient(clean, x, [40], format)[0]
    assert not np.isfinite(dw[:, 140]).any()
    assert np.isfinite(np.delete(dw, 140, 1)).all()
    x[5, 140] = 0
    for transposed in (False, True):
        weight[149, 69] = 0
        clean = product(x, [40], pack(weight, format), 70, format).numpy()
        weight[149, 69] = value
        packed = pack(weight.T if transposed else weight, format, transposed)
        y = product(x, [40], packed, 70, format).numpy()
        assert not np.isfinite(y[:, 69]).any()
        if format != "fp8" or np.isnan(value):  # an infinity takes its FP8 block along
            np.testing.assert_array_equal(y[:, :69], clean[:, :69])


@pytest.mark.parametrize("format", FORMATS)
def test_products_over_nothing(format):
    assert not product(np.ones((3, 0), np.float32), [3], pack(np.ones((0, 5), np.float32), format),
                       5, format).numpy().any()  # fmt: skip
    packed = pack(np.ones((2, 4, 5), np.float32), format)
    assert product(np.ones((0, 4), np.float32), [0, 0], packed, 5, format).shape == [0, 5]
    dw = weight_gradient(np.ones((0, 4), np.float32), np.ones((0, 5), np.float32), [0, 0], format)
    assert dw.shape == (2, 4, 5)
    assert not dw.any()


def test_weights_packed_for_something_else_are_refused(rng):
    x, weight = normal(rng, 3, 64), normal(rng, 64, 64)
    with pytest.raises(OSError, match="pack them again"):
        product(x, [3], pack(weight, "bf16"), 64, "fp32")
    with pytest.raises(OSError, match="pack them again"):  # as many bytes, but other panels
        product(normal(rng, 3, 32), [3], pack(normal(rng, 128, 32), "fp32"), 128, "fp32")


def test_groups_must_add_up(rng):
    packed = pack(normal(rng, 3, 8, 8), "fp32")
    with pytest.raises(OSError, match="groups have 4 rows together, expected 5"):
        product(normal(rng, 5, 8), [1, 3, 0], packed, 8, "fp32")
    with pytest.raises(OSError, match="group 1 has -1 rows of 5"):
        product(normal(rng, 5, 8), [4, -1, 2], packed, 8, "fp32")
