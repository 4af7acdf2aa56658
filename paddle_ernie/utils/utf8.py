"""UTF-8, and how byte-level vocabularies write bytes. Called by what reads tokenizers."""

MARKS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))
"""First and last byte that begin a character of so many bytes (RFC 3629)."""

LEAST = {2: 0x80, 3: 0x800, 4: 0x10000}
"""Smaller code points have a shorter form."""

SURROGATES = range(0xD800, 0xE000)
CODE_POINTS = 0x110000


def led_by(byte: int) -> range:
    """Code points whose UTF-8 begins with `byte`; none for 0x80-0xC1 and 0xF5-0xFF."""
    if byte < 0x80:
        return range(byte, byte + 1)
    for first, last, length in MARKS:
        if first <= byte <= last:
            shift = 6 * (length - 1)
            start = (byte & (0xFF >> (length + 1))) << shift
            stop = min(start + (1 << shift), CODE_POINTS)
            if SURROGATES.start < stop <= SURROGATES.stop:
                stop = SURROGATES.start
            return range(max(start, LEAST[length]), stop)
    return range(0)


def continues(byte: int) -> bool:
    """Whether `byte` stands inside characters, never at their beginning."""
    return 0x80 <= byte < 0xC0


def byte_alphabet() -> list[str]:
    """The character that stands for each byte 0 .. 255 in a byte-level vocabulary (GPT-2's rule).

    Printable Latin-1 characters stand for themselves; the rest are moved up past U+0100, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]
