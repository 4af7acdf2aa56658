"""Text as it comes: whole characters, nothing of a stop string, the same whatever the tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.tokenizer import Streamer
from paddle_ernie.serve.engine.detokeniser import Detokeniser

BYTES = [bytes([i]) for i in range(256)]


def pieces(text: str, cuts: list[int], stop: tuple[str, ...], include: bool = False):
    """(certain texts of the tokens, whether it stopped); tokens are the text's bytes, cut."""
    data = text.encode()
    bounds = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    table = [data[a:b] for a, b in pairwise(bounds)]
    detokeniser = Detokeniser(Streamer(table), stop, include)
    shown = []
    for token in range(len(table)):
        shown.append(detokeniser.push(token))
        if detokeniser.stopped:
            return shown, True
    return [*shown, detokeniser.flush()], False


def expected(text: str, stop: tuple[str, ...], include: bool) -> tuple[str, bool]:
    """Character by character: the first end at which a stop string is complete."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[:end] if include else text[: end - len(longest)], True
    return text, False


@given(
    st.text("abé日🙂", max_size=20),
    st.lists(st.integers(0, 100), max_size=12),
    st.lists(st.text("abé日", min_size=1, max_size=4), max_size=3).map(tuple),
    st.booleans(),
)
def test_joined_pieces_are_the_text_up_to_the_first_stop_string(text, cuts, stop, include):
    shown, stopped = pieces(text, cuts, stop, include)
    assert ("".join(shown), stopped) == expected(text, stop, include)
    assert all("�" not in piece for piece in shown)


def test_what_may_begin_a_stop_string_is_held_back_and_no_more():
    shown, stopped = pieces("xSTOxSTOP", list(range(9)), ("STOP",))
    assert shown == ["x", "", "", "", "STOx", "", "", "", ""]
    assert stopped


def test_an_unfinished_character_comes_at_the_end():
    detokeniser = Detokeniser(Streamer(BYTES), ("z",), False)
    assert [detokeniser.push(byte) for byte in "é".encode()] == ["", "é"]
    assert detokeniser.push("é".encode()[0]) == ""
    assert detokeniser.flush() == "�"


def test_a_stop_string_before_min_tokens_is_text():
    detokeniser = Detokeniser(Streamer(BYTES), ("ab",), False)
    shown = [detokeniser.push(byte, may_stop=False) for byte in b"ab"]
    shown += [detokeniser.push(byte) for byte in b"ab"]
    assert "".join(shown) == "ab"
    assert detokeniser.stopped


@pytest.mark.parametrize("stop", [("b", "ab"), ("ab", "b")])
def test_of_two_that_end_together_the_longer_one_is_cut(stop):
    assert pieces("xab", [], stop) == (["x"], True)
