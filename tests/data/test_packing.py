"""Packed rows against a token-by-token reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.packing import cut_rows, merge_rows
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from tests.data.stores import store_of

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def reference_row(lengths: list[int], start: int, size: int) -> tuple[list[int], ...]:
    """Walks the ring one token at a time; ids are places, as in `store_of`."""
    total = sum(lengths)
    begins = {sum(lengths[:i]) for i in range(len(lengths))}
    ids, labels, doc_ids, position_ids = [], [], [], []
    document = position = 0
    for step in range(size):
        place = (start + step) % total
        if step and place in begins:
            document, position = document + 1, 0
        following = (place + 1) % total
        ids.append(place)
        labels.append(IGNORE_LABEL if following in begins else following)
        doc_ids.append(document)
        position_ids.append(position)
        position += 1
    return ids, labels, doc_ids, position_ids


@given(lengths=LENGTHS, size=st.integers(1, 20), data=st.data())
def test_rows_equal_the_reference(lengths: list[int], size: int, data: st.DataObject) -> None:
    places = st.integers(0, sum(lengths) - 1)
    starts = data.draw(st.lists(places, min_size=1, max_size=4))
    batch = cut_rows(store_of(lengths), np.array(starts), size, np.arange(len(starts)))
    for row, start in enumerate(starts):
        expected = reference_row(lengths, start, size)
        names = ("input_ids", "labels", "doc_ids", "position_ids")
        for name, values in zip(names, expected, strict=True):
            assert getattr(batch, name)[row].tolist() == values, name


@given(lengths=LENGTHS, size=st.integers(2, 20), start=st.integers(0, 8))
def test_invariants_of_a_row(lengths: list[int], size: int, start: int) -> None:
    """Stated without the reference: what attention and the loss rely on."""
    batch = cut_rows(store_of(lengths), np.array([start % sum(lengths)]), size, np.arange(1))
    ids, labels, docs, positions = (
        getattr(batch, name)[0] for name in ("input_ids", "labels", "doc_ids", "position_ids")
    )
    same = docs[1:] == docs[:-1]
    assert docs[0] == 0
    assert set(np.diff(docs).tolist()) <= {0, 1}
    assert (labels[:-1][same] == ids[1:][same]).all(), "labels are the next token of the document"
    assert (labels[:-1][~same] == IGNORE_LABEL).all(), "no target crosses a border"
    assert (positions[1:][same] == positions[:-1][same] + 1).all()
    assert (positions[1:][~same] == 0).all()
    assert positions[0] == 0


def test_example_of_the_documentation() -> None:
    batch = cut_rows(store_of([4, 6]), np.array([0]), 8, np.array([5]))
    assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert batch.labels.tolist() == [[1, 2, 3, -100, 5, 6, 7, 8]]
    assert batch.doc_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch.row_ids.tolist() == [5]
    types = [getattr(batch, name).dtype for name in Batch.__dataclass_fields__]
    assert types == [np.int64, np.int64, np.int32, np.int64, np.int64]
    assert batch.num_targets == 7


def test_single_document_has_a_border_where_the_ring_closes() -> None:
    batch = cut_rows(store_of([3]), np.array([1]), 5, np.arange(1))
    assert batch.labels.tolist() == [[2, -100, 1, 2, -100]]
    assert batch.doc_ids.tolist() == [[0, 0, 1, 1, 1]]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_merged_rows_are_at_their_places(order: list[int]) -> None:
    store = store_of([5, 5])
    parts = [
        cut_rows(store, np.array([0, 1]), 3, np.array([10, 11])),
        cut_rows(store, np.array([2]), 3, np.array([12])),
    ]
    merged = merge_rows(parts, np.array(order))
    for place, row_id in zip(order, (10, 11, 12), strict=True):
        assert merged.row_ids[place] == row_id
        assert merged.input_ids[place, 0] == row_id - 10
