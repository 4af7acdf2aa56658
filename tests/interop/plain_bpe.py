"""Byte-level BPE as its definition has it, slow and plain; shares no code with the package.

Text is cut at every digit, then by GPT-2's expression; within a piece the pair whose merge was
learnt first is joined, leftmost of equals, until none is left.
"""

from collections.abc import Sequence
from itertools import pairwise

import regex

DIGITS = r"\p{N}|\P{N}+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class PlainBPE:
    """Of tokens in the order of their ids, and merges such as "t h" in the order of learning."""

    def __init__(
        self, tokens: Sequence[str], merges: Sequence[str], alphabet: Sequence[str]
    ) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._alphabet = alphabet

    def encode(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        return [
            self._ids[piece]
            for part in regex.findall(DIGITS, text)
            for word in regex.findall(GPT2, part)
            for piece in self._pieces(word)
        ]

    def _pieces(self, word: str) -> list[str]:
        pieces = [self._alphabet[byte] for byte in word.encode()]
        while True:
            pairs = list(pairwise(pieces))
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairs]
            if not ranks or min(ranks) == len(self._ranks):
                return pieces
            at = ranks.index(min(ranks))
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
