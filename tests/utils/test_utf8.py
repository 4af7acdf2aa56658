"""Compared with Python's own encoder, over all code points."""

from collections import defaultdict

from paddle_ernie.utils.utf8 import SURROGATES, continues, led_by


def test_every_code_point_is_listed_under_its_first_byte_and_no_other() -> None:
    by_first = defaultdict(list)
    for point in (p for p in range(0x110000) if p not in SURROGATES):
        by_first[chr(point).encode()[0]].append(point)
    for byte in range(256):
        assert list(led_by(byte)) == by_first[byte], hex(byte)


def test_continuation_bytes() -> None:
    inside = {
        byte for point in ("é", "鼎", "😀", "\u07ff", "\uffff") for byte in point.encode()[1:]
    }
    assert all(map(continues, inside))
    assert [byte for byte in range(256) if continues(byte)] == list(range(0x80, 0xC0))
