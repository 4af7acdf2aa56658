"""Documents as rows of three numbers each: which are duplicates, held out, or over the cap.

Every choice here looks at the hash of a document's content and nothing else, so it does not depend
on file names, file order or the machine. The three 64-bit words of a hash serve three purposes:

    word 0   train or validation
    word 1   which documents stay under a source's byte cap
    word 2   which documents a tokenizer is trained on
"""

import hashlib
from dataclasses import dataclass

import numpy as np

HASH_WORDS = 3
HASH_BYTES = 8 * HASH_WORDS
"""192 bits: equal hashes can be taken for equal documents."""

SPLIT_WORD, CAP_WORD, SAMPLE_WORD = range(HASH_WORDS)

MAX_FILE_DOCUMENT_BYTES = 1 << 16
"""Longer text files are cut, at a blank line where possible, so that one large file can still be
split into training and validation and spread over rows. About 16,000 tokens."""


@dataclass(frozen=True)
class Document:
    """One document as read: text, or tokens that were made elsewhere, as bytes."""

    content: bytes
    """UTF-8 text, or little-endian uint32 token ids for Megatron sources."""
    num_bytes: int
    """Size of the text in UTF-8."""
    file: int
    """Index of its file in the source's listing."""


def content_hash(content: bytes) -> bytes:
    """HASH_BYTES bytes that stand for the content."""
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


def as_words(hashes: bytes | bytearray) -> np.ndarray:
    """Concatenated hashes as uint64 [D, HASH_WORDS]."""
    return np.frombuffer(bytes(hashes), "<u8").reshape(-1, HASH_WORDS)


def under_cap(
    words: np.ndarray, num_bytes: np.ndarray, max_bytes: int | None, word: int
) -> np.ndarray:
    """bool [D]: documents taken in the order of one hash word until `max_bytes` are reached.

    The first document that would exceed the cap ends the choice, unless nothing was taken yet.
    """
    taken = np.ones(len(words), bool)
    if max_bytes is None or not len(words):
        return taken
    order = np.argsort(words[:, word], kind="stable")
    fits = np.cumsum(num_bytes[order]) <= max_bytes
    fits[0] = True
    taken[order] = fits
    return taken


def held_out(words: np.ndarray, fraction: float) -> np.ndarray:
    """bool [D]: documents of the validation set."""
    return words[:, SPLIT_WORD] < np.uint64(fraction * 2.0**64)


def cut(text: str, limit: int = MAX_FILE_DOCUMENT_BYTES) -> list[str]:
    """A text in pieces of at most about `limit` bytes, cut after a blank line, else after a line.

    Joined, the pieces are the text. A single line longer than the limit is cut anywhere.
    """
    if len(text) <= limit // 4 or len(text.encode()) <= limit:
        return [text]
    pieces: list[str] = []
    start = 0
    while start < len(text):
        stop = _fitting(text, start, limit)
        if stop < len(text):
            stop = _boundary(text, start, stop)
        pieces.append(text[start:stop])
        start = stop
    return pieces


def _fitting(text: str, start: int, limit: int) -> int:
    """The largest stop such that text[start:stop] has at most `limit` bytes."""
    fitting = text[start : start + limit].encode()[:limit].decode("utf-8", "ignore")
    return start + max(len(fitting), 1)


def _boundary(text: str, start: int, stop: int) -> int:
    """The last good place to cut in the second half of text[start:stop]."""
    middle = (start + stop) // 2
    for mark in ("\n\n", "\n", " "):
        if (found := text.rfind(mark, middle, stop)) >= 0:
            return found + len(mark)
    return stop
