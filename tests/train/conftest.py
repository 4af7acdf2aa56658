"""A tiny elastic MoE and random batches with documents of uneven length."""

from collections.abc import Callable

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.models.model import ErnieMoeModel
from tests.train.tiny import TINY


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ErnieMoeModel]:
    """`make_model(seed=0)`: the same weights for the same seed."""

    def make(seed: int = 0, config: ModelConfig = TINY) -> ErnieMoeModel:
        return ErnieMoeModel(config, seed=seed)

    return make


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """`make_batch(rows, seed=0)`: rows of several documents; some rows have few targets."""

    def make(rows: int, seed: int = 0, seq_len: int = 24) -> Batch:
        rng = np.random.default_rng(seed)
        input_ids = rng.integers(0, TINY.vocab_size, (rows, seq_len), np.int64)
        starts = rng.random((rows, seq_len)) < 0.15
        starts[:, 0] = False
        doc_ids = starts.cumsum(axis=1).astype(np.int32)
        labels = np.full_like(input_ids, IGNORE_LABEL)
        same = doc_ids[:, :-1] == doc_ids[:, 1:]
        labels[:, :-1][same] = input_ids[:, 1:][same]
        labels[0, 5:] = IGNORE_LABEL  # an uneven spread of targets over rows
        position_ids = np.zeros_like(input_ids)
        for column in range(1, seq_len):
            position_ids[:, column] = np.where(
                starts[:, column], 0, position_ids[:, column - 1] + 1
            )
        first = 1000 * seed
        return Batch(input_ids, labels, doc_ids, position_ids, np.arange(first, first + rows))

    return make
