"""What a language model must beat: a byte-bigram model and the xz compressor, in bits per byte.

Used by the pipeline's report and by benchmarks. Both see exactly the bytes the model is scored on.

The bigram model is smoothed by Witten and Bell's rule, which has no parameter to tune. With
c(a, b) how often byte b followed a in the training bytes, c(a) their sum and t(a) the number of
different bytes seen after a:

    P(b | a) = (c(a, b) + t(a) * P1(b)) / (c(a) + t(a))        P(b | a) = P1(b) where c(a) = 0
    P1(b)    = (c(b) + 1) / (N + 256)
"""

import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paddle_ernie.utils.errors import DataError

NUM_BYTES = 256
COUNT_CHUNK = 1 << 22  # pairs counted at once: bincount widens them to 8 bytes each, 32 MiB


@dataclass(frozen=True)
class BigramModel:
    """Predicts a byte from the one before it."""

    pairs: np.ndarray
    """int64 [256, 256]; pairs[a, b] = how often b followed a in training."""
    singles: np.ndarray
    """int64 [256]; how often each byte occurred in training."""

    @classmethod
    def train(cls, data: bytes) -> "BigramModel":
        """Count the pairs and bytes of `data`."""
        _check_length("training text", data)
        values = np.frombuffer(data, dtype=np.uint8)
        pairs = np.zeros(NUM_BYTES * NUM_BYTES, dtype=np.int64)
        for index in _pair_indices(values):
            pairs += np.bincount(index, minlength=NUM_BYTES * NUM_BYTES)
        singles = np.bincount(values, minlength=NUM_BYTES)
        return cls(pairs.reshape(NUM_BYTES, NUM_BYTES), singles)

    @cached_property
    def first(self) -> np.ndarray:
        """float64 [256]; P1(b), for the first byte and as the back-off."""
        return (self.singles + 1) / (self.singles.sum() + NUM_BYTES)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """float64 [256, 256]; row a is P(. | a) and sums to 1."""
        total = self.pairs.sum(axis=1, keepdims=True)
        kinds = (self.pairs > 0).sum(axis=1, keepdims=True)
        seen = (self.pairs + kinds * self.first) / np.maximum(total + kinds, 1)
        return np.where(total > 0, seen, self.first)

    def bits_per_byte(self, data: bytes) -> float:
        """Mean of -log2 P over the bytes of `data`, the first one under P1."""
        _check_length("validation text", data)
        values = np.frombuffer(data, dtype=np.uint8)
        cost = -np.log2(self.probabilities).reshape(-1)
        bits = -np.log2(self.first[values[0]])
        for index in _pair_indices(values):
            bits += cost[index].sum()
        return float(bits / len(values))


@dataclass(frozen=True)
class CorpusBaselines:
    """Reference lines of a report, all on the same validation text."""

    bigram: float
    """Bits per byte of the bigram model."""
    xz: float
    """Bits per byte of `xz -9e`."""
    train_bytes: int
    """Bytes the bigram model was trained on."""
    valid_bytes: int
    """Bytes both were scored on."""


def measure_baselines(train: bytes, valid: bytes) -> CorpusBaselines:
    """Train the bigram model on `train`; score it and xz on `valid`."""
    return CorpusBaselines(
        bigram=BigramModel.train(train).bits_per_byte(valid),
        xz=xz_bits_per_byte(valid),
        train_bytes=len(train),
        valid_bytes=len(valid),
    )


def xz_bits_per_byte(data: bytes) -> float:
    """Size of `data` under `xz -9e`, container included, in bits per byte of text."""
    _check_length("text to compress", data)
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


def _pair_indices(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield 256 * a + b for neighbours (a, b), in chunks that overlap by one byte."""
    for start in range(0, len(values) - 1, COUNT_CHUNK):
        chunk = values[start : start + COUNT_CHUNK + 1].astype(np.uint16)
        yield chunk[:-1] * NUM_BYTES + chunk[1:]


def _check_length(what: str, data: bytes) -> None:
    if not data:
        raise DataError(
            f"{what} for the byte baselines: found 0 bytes, expected at least one; "
            "add documents to the data sources or raise the validation share"
        )
