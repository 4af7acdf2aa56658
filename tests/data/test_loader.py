"""The data order: complete, deterministic, resumable at any step, in the shares asked for."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.loader import TrainLoader, valid_batch
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.data.types import Batch
from paddle_ernie.utils.errors import DataError
from tests.data.stores import corpus_of, store_of

SEQ = 8


def assert_equal(left: Batch, right: Batch) -> None:
    for name in Batch.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), name)


def loader_of(corpus: Corpus, batch: int = 4, seed: int = 1, **settings: object) -> TrainLoader:
    return TrainLoader(corpus, max_seq_len=SEQ, global_batch_size=batch, seed=seed, **settings)


@pytest.fixture(scope="module")
def mixture(tokenizer: Tokenizer) -> Corpus:
    """Three sources of 13, 30 and 4 rows, with tails."""
    lengths = [[7, 30, 1, 70], [11] * 22 + [5], [3] * 12]
    stores = [store_of(x, first_id=10_000 * i, name=f"s{i}") for i, x in enumerate(lengths)]
    return corpus_of(tokenizer, stores)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 2**63))
def test_an_epoch_has_every_token_once_but_a_tail(
    tokenizer: Tokenizer, lengths: list[int], seed: int
) -> None:
    total = sum(lengths) + SEQ
    loader = loader_of(corpus_of(tokenizer, [store_of([*lengths, SEQ])]), batch=1, seed=seed)
    for _ in range(3):
        rows = [loader.next_batch().input_ids for _ in range(total // SEQ)]
        seen = np.concatenate(rows).ravel()
        assert len(set(seen.tolist())) == len(seen) == total - total % SEQ
        assert seen.min() >= 0
        assert seen.max() < total


def test_epochs_are_ordered_and_cut_differently(tokenizer: Tokenizer) -> None:
    loader = loader_of(corpus_of(tokenizer, [store_of([10] * 50)]), batch=62)
    first, second = (loader.next_batch().input_ids[:, 0] for _ in range(2))
    assert (np.diff(first) < 0).any()
    assert (first != second).any()
    assert set((first % SEQ).tolist()) != set((second % SEQ).tolist())
    assert loader.epochs() == [2.0]


@given(before=st.integers(0, 60), batch=st.integers(1, 9), later_batch=st.integers(1, 9))
def test_resume_is_exact_at_any_step(
    mixture: Corpus, before: int, batch: int, later_batch: int
) -> None:
    whole = loader_of(mixture, batch)
    for _ in range(before):
        whole.next_batch()
    state = json.loads(json.dumps(whole.state()))
    resumed = loader_of(mixture, batch)
    resumed.restore(state)
    assert resumed.state() == whole.state()
    for _ in range(5):
        assert_equal(resumed.next_batch(), whole.next_batch())
    other_size = loader_of(mixture, later_batch)
    other_size.restore(state)
    assert other_size.next_batch().row_ids[0] == before * batch


@given(batch=st.integers(1, 30))
def test_order_does_not_depend_on_the_batch_size(mixture: Corpus, batch: int) -> None:
    one_by_one, together = loader_of(mixture, 1), loader_of(mixture, batch)
    for _ in range(3):
        rows = together.next_batch()
        for row in range(batch):
            assert_equal(one_by_one.next_batch(), rows.rows(row, row + 1))


def test_row_ids_count_on_over_epochs(mixture: Corpus) -> None:
    loader = loader_of(mixture, 7)
    ids = np.concatenate([loader.next_batch().row_ids for _ in range(40)])
    assert ids.tolist() == list(range(280))


def test_seed_decides_the_order(mixture: Corpus) -> None:
    first, same, other = (loader_of(mixture, 40, seed).next_batch() for seed in (5, 5, 6))
    assert_equal(first, same)
    assert (first.input_ids != other.input_ids).any()


@given(weights=st.lists(st.floats(0.01, 10), min_size=3, max_size=3))
def test_sources_come_in_their_shares_at_every_row(mixture: Corpus, weights: list[float]) -> None:
    loader = loader_of(mixture, 1, weights=weights)
    drawn = np.zeros(3)
    for step in range(1, 60):
        drawn[loader.next_batch().input_ids[0, 0] // 10_000] += 1
        assert np.abs(drawn - step * np.array(weights) / sum(weights)).max() < 3


def test_without_weights_epochs_end_together(mixture: Corpus) -> None:
    loader = loader_of(mixture, 47)
    loader.next_batch()
    assert loader.epochs() == [1.0, 1.0, 1.0]


def test_weights_of_the_corpus_are_the_default(tokenizer: Tokenizer) -> None:
    stores = [store_of([80], first_id=10_000 * i) for i in range(2)]
    loader = loader_of(corpus_of(tokenizer, stores, weights=(3.0, 1.0)), 8)
    assert (loader.next_batch().input_ids[:, 0] < 10_000).sum() == 6
    with pytest.raises(DataError, match="3 weights for 2 sources"):
        loader_of(corpus_of(tokenizer, stores), 8, weights=[1, 2, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": "g"}, "corpus is f, was g"),
        ({"max_seq_len": 16}, "max_seq_len is 8, was 16"),
        ({"seed": 2}, "seed is 1, was 2"),
        ({"shares": [1.0]}, "shares is"),
        ({"version": 0}, "version is 1, was 0"),
    ],
)
def test_foreign_state_is_refused(mixture: Corpus, change: dict, message: str) -> None:
    loader = loader_of(mixture)
    before = loader.state()
    with pytest.raises(DataError, match=message):
        loader.restore({**before, **change})
    assert loader.state() == before


def test_too_little_text_is_refused(tokenizer: Tokenizer) -> None:
    corpus = corpus_of(tokenizer, [store_of([30], name="books"), store_of([7], name="notes")])
    with pytest.raises(
        DataError, match="source 'notes': 7 training tokens, less than one row of 8"
    ):
        loader_of(corpus)
    corpus = corpus_of(tokenizer, [store_of([30])])
    with pytest.raises(DataError, match="3 rows of 8 tokens, fewer than one global batch of 4"):
        loader_of(corpus)


def test_valid_rows_are_spread_and_fixed(tokenizer: Tokenizer) -> None:
    stores = [store_of([400], first_id=10_000 * i) for i in range(2)]
    corpus = corpus_of(tokenizer, [store_of([80])], stores)
    batch = valid_batch(corpus, max_seq_len=SEQ, rows=10)
    assert batch.input_ids[:, 0].tolist() == [
        *(SEQ * row for row in (5, 15, 25, 35, 45)),
        *(10_000 + SEQ * row for row in (5, 15, 25, 35, 45)),
    ]
    assert batch.row_ids.tolist() == list(range(10))
    weighted = corpus_of(tokenizer, [store_of([80])], stores, weights=(1.0,), fingerprint="other")
    assert_equal(valid_batch(weighted, max_seq_len=SEQ, rows=10), batch)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), rows=st.integers(1, 40))
def test_valid_rows_never_repeat(tokenizer: Tokenizer, lengths: list[int], rows: int) -> None:
    stores = [store_of([n], first_id=1000 * i) for i, n in enumerate([*lengths, SEQ])]
    batch = valid_batch(corpus_of(tokenizer, stores), max_seq_len=SEQ, rows=rows)
    available = sum(n // SEQ for n in [*lengths, SEQ])
    assert len(batch) == min(rows, available)
    assert len(np.unique(batch.input_ids)) == batch.input_ids.size


def test_no_valid_row_is_refused(tokenizer: Tokenizer) -> None:
    corpus = corpus_of(tokenizer, [store_of([80])], [store_of([5]), store_of([])])
    with pytest.raises(DataError, match=r"holds 5 tokens of a source at most.*valid_fraction"):
        valid_batch(corpus, max_seq_len=SEQ, rows=4)
