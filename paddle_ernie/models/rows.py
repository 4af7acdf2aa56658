"""What a layer needs to know about the rows it runs, besides their hidden states."""

from dataclasses import dataclass

import numpy as np

from paddle_ernie.ops.numerics import Numerics


@dataclass(frozen=True)
class RowInputs:
    """Documents and rotations of some rows of a batch, and how their products are rounded."""

    doc_ids: np.ndarray | None
    """int [rows, S]; None: each row is one document."""
    rotations: np.ndarray
    """complex64 [rows * S, head_dim / 2]; see ops.rope."""
    seq_len: int
    """S."""
    numerics: Numerics
    """Rounding of matrix products, and the weights packed for it."""

    def take(self, rows: np.ndarray) -> "RowInputs":
        """The same for a selection of the rows."""
        doc_ids = None if self.doc_ids is None else self.doc_ids[rows]
        by_row = self.rotations.reshape(-1, self.seq_len, self.rotations.shape[-1])
        rotations = by_row[rows].reshape(-1, by_row.shape[-1])
        return RowInputs(doc_ids, rotations, self.seq_len, self.numerics)
