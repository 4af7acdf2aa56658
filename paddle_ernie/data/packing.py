"""Rows of tokens cut from a TokenStore, with what attention and the loss need to know.

    store   a b c <eos> d e f g h i <eos> j ...        documents one after the other
    row     [a b c <eos> d e f g]                      any S tokens in a row
    labels   b c <eos> -   e f g h                     next token of the same document
    doc_ids  0 0 0 0   1 1 1 1      positions 0 1 2 3 0 1 2 3

Called by `loader`. All rows of a batch are cut at once with numpy; the store is memory-mapped, so a
batch touches only the pages it needs.
"""

import numpy as np

from paddle_ernie.data.store import TokenStore
from paddle_ernie.data.types import IGNORE_LABEL, Batch


def cut_rows(store: TokenStore, starts: np.ndarray, max_seq_len: int, row_ids: np.ndarray) -> Batch:
    """The rows that begin at `starts` (int64 [B], below the store's length).

    The store is taken as a ring: a row that runs past the end goes on with the first document.
    """
    columns = np.arange(max_seq_len + 1)
    at_BS1 = (starts[:, None] + columns) % store.num_tokens
    tokens_BS1 = np.asarray(store.tokens[at_BS1], np.int64)
    document_BS1 = np.searchsorted(store.offsets, at_BS1, side="right") - 1
    begins_BS1 = store.offsets[document_BS1] == at_BS1
    begins_BS = begins_BS1[:, :-1]
    piece_BS = np.where(begins_BS, columns[:-1], 0)
    same_next_BS = ~begins_BS1[:, 1:]
    return Batch(
        input_ids=np.ascontiguousarray(tokens_BS1[:, :-1]),
        labels=np.where(same_next_BS, tokens_BS1[:, 1:], IGNORE_LABEL),
        doc_ids=(np.cumsum(begins_BS, axis=1) - begins_BS[:, :1]).astype(np.int32),
        position_ids=columns[:-1] - np.maximum.accumulate(piece_BS, axis=1),
        row_ids=row_ids,
    )


def merge_rows(batches: list[Batch], order: np.ndarray) -> Batch:
    """One batch of all rows, row i of the concatenation going to place order[i]."""
    if len(batches) == 1:
        return batches[0]
    back = np.argsort(order)
    return Batch(
        *(
            np.concatenate([getattr(batch, name) for batch in batches])[back]
            for name in Batch.__dataclass_fields__
        )
    )
