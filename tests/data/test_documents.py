"""Choices by hash: independent of order, nested caps, exact cutting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.documents import (
    CAP_WORD,
    HASH_BYTES,
    HASH_WORDS,
    SPLIT_WORD,
    as_words,
    content_hash,
    cut,
    held_out,
    under_cap,
)

SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=30)


def words_of(count: int) -> np.ndarray:
    return as_words(b"".join(content_hash(b"%d" % n) for n in range(count)))


def test_hash_words_are_the_hash() -> None:
    digest = content_hash(b"x")
    assert len(digest) == HASH_BYTES
    assert as_words(digest + digest).shape == (2, HASH_WORDS)
    assert as_words(digest).tobytes() == digest


@given(sizes=SIZES, cap=st.integers(1, 3000), data=st.data())
def test_cap_is_kept_and_does_not_depend_on_order(
    sizes: list[int], cap: int, data: st.DataObject
) -> None:
    words, num_bytes = words_of(len(sizes)), np.array(sizes)
    taken = under_cap(words, num_bytes, cap, CAP_WORD)
    assert taken.sum() == 1 or num_bytes[taken].sum() <= cap
    order = np.array(data.draw(st.permutations(range(len(sizes)))))
    assert (under_cap(words[order], num_bytes[order], cap, CAP_WORD) == taken[order]).all()
    larger = under_cap(words, num_bytes, cap + 50, CAP_WORD)
    assert (larger | ~taken).all(), "a larger cap keeps what a smaller one kept"


def test_no_cap_takes_all() -> None:
    assert under_cap(words_of(5), np.full(5, 10**9), None, CAP_WORD).all()
    assert len(under_cap(words_of(0), np.zeros(0), 5, CAP_WORD)) == 0


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.4])
def test_held_out_share(fraction: float) -> None:
    words = words_of(20_000)
    assert held_out(words, fraction).mean() == pytest.approx(fraction, rel=0.15)
    by_hand = words[:, SPLIT_WORD].astype(float) / 2.0**64 < fraction
    assert (held_out(words, fraction) == by_hand).all()


def test_held_out_is_independent_of_the_cap() -> None:
    words = words_of(20_000)
    kept = under_cap(words, np.ones(len(words)), 5000, CAP_WORD)
    assert held_out(words[kept], 0.1).mean() == pytest.approx(0.1, abs=0.015)


@given(text=st.text(alphabet="ab长😀 \n", max_size=300), limit=st.integers(1, 40))
def test_cut_pieces_join_to_the_text(text: str, limit: int) -> None:
    pieces = cut(text, limit)
    assert "".join(pieces) == text
    assert all(len(p.encode()) <= limit or len(p) == 1 for p in pieces)
    assert text == "" or all(pieces)


def test_cut_prefers_blank_lines_then_lines() -> None:
    assert cut("aaaa\n\nbbbb\nc", 10) == ["aaaa\n\n", "bbbb\nc"]
    assert cut("aaaaaaa\nbbbb cc", 10) == ["aaaaaaa\n", "bbbb cc"]
    assert cut("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
