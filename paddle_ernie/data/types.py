"""The records that leave the data package."""

from dataclasses import dataclass

import numpy as np

IGNORE_LABEL = -100
"""Label of a position that has no target: the last token of a document piece, or padding."""


@dataclass(frozen=True)
class Batch:
    """Packed rows of tokens. B rows, S tokens a row.

    Example with S = 8, documents "a b c <eos>" and "d e ...":
        input_ids     a b c <eos> d e f g
        labels        b c <eos> -100 e f g h
        doc_ids       0 0 0 0 1 1 1 1
        position_ids  0 1 2 3 0 1 2 3
    """

    input_ids: np.ndarray
    """int64 [B, S]."""
    labels: np.ndarray
    """int64 [B, S]; the next token of the same document, else IGNORE_LABEL."""
    doc_ids: np.ndarray
    """int32 [B, S]; attention stays inside runs of equal ids; non-decreasing from 0 in a row."""
    position_ids: np.ndarray
    """int64 [B, S]; restarts at 0 with each document piece."""
    row_ids: np.ndarray
    """int64 [B]; index of the row in the run's data order, counted over epochs; never repeats."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def rows(self, start: int, stop: int) -> "Batch":
        """Rows [start, stop) as a Batch (views, no copy)."""
        return Batch(*(getattr(self, name)[start:stop] for name in self.__dataclass_fields__))

    @property
    def num_targets(self) -> int:
        """Positions with a target; what losses are normalised by."""
        return int((self.labels != IGNORE_LABEL).sum())
