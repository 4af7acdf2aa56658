import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.rope import rope, rope_rotations
from tests.ops.kernels import (
    AVX2,
    AVX512,
    PORTABLE,
    running,
    same_bits,
    tensors,
    value_and_gradients,
)

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])


def test_values_and_gradients(check_operator, rng):
    positions = np.array([0, 1, 2, 0, 17])
    rotations = rope_rotations(positions, 4, 10_000.0)
    check_operator(
        lambda x: rope(x, rotations, 2),
        lambda x: reference.rope(x, positions, 10_000.0, 2),
        [rng.standard_normal((5, 3, 4))],
        tolerance=3e-6,  # angles are fp32
    )


@levels
@settings(max_examples=15)
@given(
    tokens=st.integers(0, 6),
    heads=st.integers(1, 5),
    pairs=st.integers(1, 35),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_kernels_equal_the_plain_body(level, tokens, heads, pairs, seed, data):
    rng = np.random.default_rng(seed)
    rotated = data.draw(st.integers(0, heads))
    rotations = rope_rotations(rng.integers(0, 5000, tokens), 2 * pairs, 10_000.0)
    x, dy = rng.standard_normal((2, tokens, heads, 2 * pairs))

    def turn(x):
        return rope(x, rotations, rotated)

    expected = value_and_gradients(turn, [x], [dy], "float64")
    with running(level=level):
        actual = value_and_gradients(turn, [x], [dy], "float32")
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_scores_depend_on_distance_only(rng):
    query, key = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            rope(paddle.to_tensor(x), rope_rotations(np.array([position]), 8, 1e4), 1).numpy()
            for x, position in ((query, query_position), (key, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(5, 3) - score(105, 103)) < 1e-4
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


@levels
def test_heads_after_the_rotated_ones_are_copied(level, rng):
    (x,) = tensors(rng.standard_normal((4, 5, 6)))
    with running(level=level):
        y = rope(x, rope_rotations(np.arange(4), 6, 1e6), 3)
    assert same_bits(y[:, 3:], x[:, 3:])
    assert not np.array_equal(y.numpy()[1:, :3], x.numpy()[1:, :3])


@levels
def test_bits_of_a_token_depend_on_nothing_else(level, rng):
    x, _ = tensors(*rng.standard_normal((2, 300, 4, 20)))
    rotations = rope_rotations(np.arange(300), 20, 1e4)
    with running(level=level, threads=1):
        whole = rope(x, rotations, 3)
        assert same_bits(rope(x[17:18], rotations[17:18], 3), whole[17:18])
    with running(level=level, threads=3):
        assert same_bits(rope(x, rotations, 3), whole)


@levels
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_pair(level, value, rng):
    x = rng.standard_normal((2, 2, 20))
    x[1, 0, 6] = value
    with running(level=level):
        y = rope(*tensors(x), rope_rotations(np.arange(2), 20, 1e4), 1).numpy()
    assert not np.isfinite(y[1, 0, 6:8]).any()
    assert np.isfinite(y).sum() == y.size - 2


def test_strided_rotations(rng):
    (x,) = tensors(rng.standard_normal((4, 2, 8)))
    rotations = rope_rotations(np.arange(8), 8, 1e4)
    assert same_bits(rope(x, rotations[::2], 2), rope(x, rotations[::2].copy(), 2))
