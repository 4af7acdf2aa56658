"""The order in which rows reach training, and the rows of the validation set.

    row number t = 0, 1, 2, ... of the run
        -> source    the one furthest behind its share (low discrepancy, no randomness)
        -> its n-th row: epoch n // R, place n % R in that epoch's seeded permutation of R rows
        -> S tokens of the store, which is a ring cut anew at a seeded offset every epoch

Everything follows from the seed and the count of rows drawn per source, so the state is a handful
of integers, restoring is instant and exact at any step, and the batch size may change on the way.
An epoch covers every token once except num_tokens % S of them, others in each epoch. The order does
not depend on micro-batches or ranks: a rank takes its slice of the global batch.

Called by the training loop; nothing here imports Paddle.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.packing import cut_rows, merge_rows
from paddle_ernie.data.store import TokenStore
from paddle_ernie.data.types import Batch
from paddle_ernie.utils.errors import DataError

STATE_VERSION = 1


class TrainLoader:
    """Global batches, one after the other, without end."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_seq_len: int,
        global_batch_size: int,
        seed: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """`weights` (shares of the rows) replaces the corpus's own; both None: by size."""
        self._batch_size = global_batch_size
        self._max_seq_len = max_seq_len
        rows = [store.num_tokens // max_seq_len for store in corpus.train]
        _check_rows(corpus.train, rows, max_seq_len, global_batch_size)
        chosen = weights or corpus.weights or rows
        if len(chosen) != len(rows):
            raise DataError(f"{len(chosen)} weights for {len(rows)} sources; give one each")
        self._shares = np.array(chosen, float) / sum(chosen)
        self._sources = [
            _SourceRows(store, max_seq_len, seed, number)
            for number, store in enumerate(corpus.train)
        ]
        self._drawn = np.zeros(len(rows), np.int64)
        self._identity = {
            "corpus": corpus.fingerprint,
            "max_seq_len": max_seq_len,
            "seed": seed,
            "shares": self._shares.tolist(),
        }

    def next_batch(self) -> Batch:
        """The next `global_batch_size` rows."""
        first = int(self._drawn.sum())
        source_B = self._interleave(first)
        batches, places = [], []
        for number, source in enumerate(self._sources):
            place = np.flatnonzero(source_B == number)
            if not len(place):
                continue
            numbers = self._drawn[number] + np.arange(len(place))
            starts = source.starts(numbers)
            batches.append(cut_rows(source.store, starts, self._max_seq_len, first + place))
            places.append(place)
            self._drawn[number] += len(place)
        return merge_rows(batches, np.concatenate(places))

    def epochs(self) -> list[float]:
        """How many times each source has been gone through."""
        return [
            drawn / source.num_rows
            for drawn, source in zip(self._drawn.tolist(), self._sources, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """What `restore` needs; plain JSON values."""
        return {"version": STATE_VERSION, "drawn": self._drawn.tolist(), **self._identity}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a loader of the same corpus, row length, seed and shares was."""
        expected = {"version": STATE_VERSION, **self._identity}
        differing = [name for name, value in expected.items() if state.get(name) != value]
        if differing:
            found = "; ".join(f"{n} is {expected[n]}, was {state.get(n)}" for n in differing)
            raise DataError(
                f"the data position was saved with other data or settings ({found}); restore the "
                "former sources and settings, or start over"
            )
        self._drawn = np.array(state["drawn"], np.int64)

    def _interleave(self, first: int) -> np.ndarray:
        """Source of each row of the batch: int64 [B]."""
        if len(self._sources) == 1:
            return np.zeros(self._batch_size, np.int64)
        drawn = self._drawn.copy()
        chosen = np.empty(self._batch_size, np.int64)
        for row in range(self._batch_size):
            chosen[row] = np.argmax(self._shares * (first + row + 1) - drawn)
            drawn[chosen[row]] += 1
        return chosen


class _SourceRows:
    """Row n of one source, counted over epochs, as a place in its store."""

    def __init__(self, store: TokenStore, max_seq_len: int, seed: int, number: int) -> None:
        self.store = store
        self.num_rows = store.num_tokens // max_seq_len
        self._max_seq_len = max_seq_len
        self._key = (seed, number)
        self._epoch = -1
        self._offset = 0
        self._order = np.zeros(0, np.int64)

    def starts(self, numbers: np.ndarray) -> np.ndarray:
        """int64 [B]: first token of each row."""
        epochs = numbers // self.num_rows
        starts = np.empty(len(numbers), np.int64)
        for epoch in np.unique(epochs).tolist():
            self._enter(epoch)
            here = epochs == epoch
            rows = self._order[numbers[here] % self.num_rows]
            starts[here] = (self._offset + rows * self._max_seq_len) % self.store.num_tokens
        return starts

    def _enter(self, epoch: int) -> None:
        """Draw the offset and the permutation of an epoch, 8 bytes per row.

        Philox's raw stream is the same in every numpy version, `Generator.permutation` is not.
        """
        if epoch == self._epoch:
            return
        seed, number = self._key
        stream = np.random.Philox(key=np.array([seed, (number << 32) + epoch], np.uint64))
        values = stream.random_raw(self.num_rows + 1)
        self._offset = int(values[-1] % np.uint64(self.store.num_tokens))
        self._order = np.argsort(values[:-1], kind="stable")
        self._epoch = epoch


def valid_batch(corpus: Corpus, *, max_seq_len: int, rows: int) -> Batch:
    """`rows` rows spread evenly over the validation set, or all it has if that is fewer.

    The same rows for every seed, mixture weight and training setting.
    """
    available = np.array([store.num_tokens // max_seq_len for store in corpus.valid])
    total = int(available.sum())
    if not total:
        tokens = max(store.num_tokens for store in corpus.valid)
        raise DataError(
            f"the validation set holds {tokens} tokens of a source at most, less than one row of "
            f"{max_seq_len}; raise data.valid_fraction, add documents or lower data.max_seq_len"
        )
    rows = min(rows, total)
    chosen = (2 * np.arange(rows) + 1) * total // (2 * rows)
    firsts = np.concatenate([[0], np.cumsum(available)])
    batches = []
    for store, first, last in zip(corpus.valid, firsts, firsts[1:], strict=False):
        place = np.flatnonzero((chosen >= first) & (chosen < last))
        if len(place):
            starts = (chosen[place] - first) * max_seq_len
            batches.append(cut_rows(store, starts, max_seq_len, place))
    return merge_rows(batches, np.arange(rows))


def _check_rows(
    stores: list[TokenStore], rows: list[int], max_seq_len: int, global_batch_size: int
) -> None:
    for store, count in zip(stores, rows, strict=True):
        if not count:
            raise DataError(
                f"source {store.name!r}: {store.num_tokens} training tokens, less than one row of "
                f"{max_seq_len}; add text, lower data.max_seq_len or merge it with another source"
            )
    if sum(rows) < global_batch_size:
        raise DataError(
            f"the training set holds {sum(rows)} rows of {max_seq_len} tokens, fewer than one "
            f"global batch of {global_batch_size}; add text, lower data.max_seq_len or "
            "train.global_batch_size"
        )
