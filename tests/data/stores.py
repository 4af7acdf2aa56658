"""Token stores and corpora made in memory, for tests of what comes after tokenising."""

from pathlib import Path

import numpy as np

from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.store import TokenStore
from paddle_ernie.data.tokenizer import Tokenizer


def store_of(lengths: list[int], first_id: int = 0, name: str = "texts") -> TokenStore:
    """Documents of these lengths; ids count up from `first_id`, so that each names its place."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(first_id, first_id + offsets[-1]).astype(np.uint32)
    return TokenStore(name, tokens, offsets)


def corpus_of(
    tokenizer: Tokenizer,
    train: list[TokenStore],
    valid: list[TokenStore] | None = None,
    weights: tuple[float, ...] | None = None,
    fingerprint: str = "f",
) -> Corpus:
    """A corpus of these stores."""
    return Corpus(tokenizer, Path(), train, valid or train, [], weights, fingerprint)
