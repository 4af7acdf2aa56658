import itertools
import lzma
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.post import baselines
from paddle_ernie.post.baselines import BigramModel, measure_baselines, xz_bits_per_byte
from paddle_ernie.utils.errors import DataError


def reference_bits(train: bytes, valid: bytes) -> float:
    """The formulas of the module docstring, one byte at a time."""
    following: dict[int, dict[int, int]] = {}
    for a, b in itertools.pairwise(train):
        row = following.setdefault(a, {})
        row[b] = row.get(b, 0) + 1
    single = {b: (train.count(b) + 1) / (len(train) + 256) for b in range(256)}
    bits = -math.log2(single[valid[0]])
    for a, b in itertools.pairwise(valid):
        row = following.get(a, {})
        total, kinds = sum(row.values()), len(row)
        probability = single[b]
        if total:
            probability = (row.get(b, 0) + kinds * single[b]) / (total + kinds)
        bits -= math.log2(probability)
    return bits / len(valid)


def test_hand_computed_case():
    # Training "abab": a is followed by b twice, b by a once; P1(a) = P1(b) = 3/260.
    model = BigramModel.train(b"abab")
    assert model.pairs[ord("a"), ord("b")] == 2
    assert model.pairs[ord("b"), ord("a")] == 1
    assert model.pairs.sum() == 3
    # P(b | a) = (2 + 1 * 3/260) / (2 + 1); valid "ab": first byte costs log2(260/3).
    expected = (math.log2(260 / 3) + math.log2(3 / (2 + 3 / 260))) / 2
    assert model.bits_per_byte(b"ab") == pytest.approx(expected, rel=1e-12)


@given(st.binary(min_size=1, max_size=80), st.binary(min_size=1, max_size=40))
def test_equals_the_byte_by_byte_reference(train, valid):
    model = BigramModel.train(train)
    np.testing.assert_allclose(model.probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert (model.probabilities > 0).all()
    assert model.bits_per_byte(valid) == pytest.approx(reference_bits(train, valid), rel=1e-10)


def test_pairs_across_chunks_are_counted_once(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8).tobytes()
    whole = BigramModel.train(data)
    monkeypatch.setattr(baselines, "COUNT_CHUNK", 7)
    chunked = BigramModel.train(data)
    assert (whole.pairs == chunked.pairs).all()
    assert chunked.bits_per_byte(data) == pytest.approx(whole.bits_per_byte(data), rel=1e-12)


def test_random_bytes_cost_about_eight_bits_and_repetition_almost_none():
    rng = np.random.default_rng(1)
    noise = [rng.integers(0, 256, 200_000, dtype=np.uint8).tobytes() for _ in range(2)]
    assert 8.0 < BigramModel.train(noise[0]).bits_per_byte(noise[1]) < 8.5
    repeated = b"ab" * 50_000
    assert BigramModel.train(repeated).bits_per_byte(repeated) < 0.01
    assert xz_bits_per_byte(noise[0]) == pytest.approx(8.0, abs=0.01)


def test_measured_baselines_on_the_same_text():
    train, valid = b"the quick brown fox " * 50, b"the lazy dog and the quick fox " * 9
    result = measure_baselines(train, valid)
    assert result.bigram == pytest.approx(reference_bits(train, valid), rel=1e-10)
    packed = lzma.compress(valid, preset=9 | lzma.PRESET_EXTREME)
    assert result.xz == 8 * len(packed) / len(valid)
    assert (result.train_bytes, result.valid_bytes) == (len(train), len(valid))


@pytest.mark.parametrize(("train", "valid", "named"), [(b"", b"a", "train"), (b"a", b"", "valid")])
def test_empty_text_is_an_error_that_says_which(train, valid, named):
    with pytest.raises(DataError, match=named):
        measure_baselines(train, valid)
