"""How fast text becomes batches on this machine; `tools/bench.py` shows it as a table.

The figures are those of the real path: `prepare_corpus` from files to a checked cache, on the
Python installation's own library unless another source is given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.utils.threads import available_cores

LOADER_BATCHES = 200

T = TypeVar("T")


@dataclass(frozen=True)
class DataBench:
    """Results. MB are 10^6 bytes of UTF-8 text."""

    text_megabytes: float
    bytes_per_token: float
    vocab_size: int
    tokenizer_seconds: float
    """Training a tokenizer on `tokenizer_bytes` of the text."""
    one_core_mb_per_second: float
    """Read, hash, tokenise and write with one worker, process start included."""
    all_cores_mb_per_second: float
    """The same with a worker per core."""
    cores: int
    warm_start_seconds: float
    """Finding and checking a cache that exists."""
    loader_milliseconds: float
    """One global batch."""
    batch_rows: int
    max_seq_len: int


def bench_data(
    work: Path,
    *,
    source: SourceConfig | None = None,
    vocab_size: int = 8192,
    tokenizer_bytes: int = 4_000_000,
    batch_rows: int = 16,
    max_seq_len: int = 512,
) -> DataBench:
    """Measure in `work`, an empty folder of the caller, who removes it."""
    source = source or SourceConfig(format="python_stdlib")
    tokenizer = TokenizerConfig(vocab_size=vocab_size, train_bytes=tokenizer_bytes)
    data = DataConfig(sources=[source], tokenizer=tokenizer, max_seq_len=max_seq_len)
    trained = prepare_corpus(data, cache_dir=work / "first")

    def prepare(workers: int) -> tuple[Corpus, float]:
        config = data.model_copy(update={"num_workers": workers})
        cache = work / f"cache-{workers}"
        return _timed(
            lambda: prepare_corpus(config, cache_dir=cache, tokenizer_path=trained.tokenizer_dir)
        )

    cores = available_cores()
    _, one = prepare(1)
    corpus, all_cores = prepare(cores) if cores > 1 else (trained, one)
    _, warm = _timed(lambda: prepare_corpus(data, cache_dir=work / "first"))
    summary = corpus.summary[0]
    return DataBench(
        text_megabytes=summary.bytes / 1e6,
        bytes_per_token=summary.bytes / summary.tokens,
        vocab_size=corpus.tokenizer.vocab_size,
        tokenizer_seconds=_tokenizer_seconds(corpus, tokenizer_bytes, vocab_size),
        one_core_mb_per_second=summary.bytes / 1e6 / one,
        all_cores_mb_per_second=summary.bytes / 1e6 / all_cores,
        cores=cores,
        warm_start_seconds=warm,
        loader_milliseconds=_loader_milliseconds(corpus, batch_rows, max_seq_len),
        batch_rows=batch_rows,
        max_seq_len=max_seq_len,
    )


def _tokenizer_seconds(corpus: Corpus, num_bytes: int, vocab_size: int) -> float:
    store, texts, size = corpus.train[0], [], 0
    for index in range(store.num_documents):
        if size >= num_bytes:
            break
        texts.append(corpus.tokenizer.decode(store.document(index).tolist()))
        size += len(texts[-1].encode())
    return _timed(lambda: Tokenizer.train(texts, vocab_size))[1]


def _loader_milliseconds(corpus: Corpus, batch_rows: int, max_seq_len: int) -> float:
    loader = TrainLoader(
        corpus, max_seq_len=max_seq_len, global_batch_size=batch_rows, seed=1, weights=None
    )

    def draw() -> None:
        for _ in range(LOADER_BATCHES):
            loader.next_batch()

    return _timed(draw)[1] / LOADER_BATCHES * 1000


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = action()
    return result, time.perf_counter() - started
