"""Building a corpus: the steps between listed files and the folders of the cache, in order.

    read -> split -> tokenizer -> tokenise -> record under prepared/

Called by `corpus.prepare_corpus`, which holds the cache's lock meanwhile.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from paddle_ernie.config.data import DataConfig
from paddle_ernie.data.cache import Cache, digest
from paddle_ernie.data.documents import SAMPLE_WORD, SPLIT_WORD, held_out, under_cap
from paddle_ernie.data.encode import EncodeJob, encode
from paddle_ernie.data.sources import Listing, printable
from paddle_ernie.data.spool import Spool, check_stop, read_source
from paddle_ernie.data.store import open_store, write_store
from paddle_ernie.data.summary import SourceSummary, SplitCounts
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import CheckpointError, DataError
from paddle_ernie.utils.files import directory_atomic, write_json
from paddle_ernie.utils.manifest import verify_manifest, write_manifest
from paddle_ernie.utils.options import StopFlag
from paddle_ernie.utils.threads import available_cores

logger = logging.getLogger(__name__)

CACHE_VERSION = 2
"""Raised when the same documents and settings would give other tokens or other files."""

LAYOUT = "Ab  c\td\n\n  e\r\n"
"""What normalising tokenizers change: capitals, runs of spaces, tabs, line ends."""

PREPARED_FILE = "prepared.json"


class CorpusBuilder:
    """One build: holds what every step needs."""

    def __init__(
        self,
        data: DataConfig,
        cache: Cache,
        scratch: Path,
        progress: Progress,
        stop: StopFlag | None,
    ) -> None:
        self._data = data
        self._cache = cache
        self._scratch = scratch
        self._progress = progress
        self._stop = stop

    def build(self, listings: list[Listing], given: Path | None, key: str) -> None:
        """Everything from files to the folder `prepared/<key>`."""
        tokenizer = _load_given(given) if given else None
        spools = self._read(listings, tokenizer)
        held = split_documents(spools, self._data.valid_fraction)
        tokenizer_key = self._place_tokenizer(tokenizer, spools, held)
        placed = Tokenizer.load(self._cache.tokenizer(tokenizer_key))
        stores = [
            self._place_tokens(spool, valid, tokenizer_key, placed)
            for spool, valid in zip(spools, held, strict=True)
        ]
        self._record(spools, held, tokenizer_key, stores, key)

    def _read(self, listings: list[Listing], tokenizer: Tokenizer | None) -> list[Spool]:
        seen: set[bytes] = set()
        token_bytes = None if tokenizer is None else tokenizer.token_bytes
        return [
            read_source(
                listing,
                seen,
                self._scratch / f"source-{number}.docs",
                token_bytes=token_bytes,
                progress=self._progress,
                stop=self._stop,
            )
            for number, listing in enumerate(listings)
        ]

    def _place_tokenizer(
        self, given: Tokenizer | None, spools: list[Spool], held: list[np.ndarray]
    ) -> str:
        """Key of the tokenizer's folder in the cache; trained if none was given."""
        if given is not None:
            key = f"given-{digest(given.fingerprint, given.config)}"
            self._place(self._cache.tokenizer(key), lambda folder: _save(given, folder))
            return key
        samples = self._tokenizer_samples(spools, held)
        words = [spool.words[chosen].tobytes() for spool, chosen in samples]
        size = self._data.tokenizer.vocab_size
        key = f"trained-{digest(str(CACHE_VERSION), str(size), *words)}"
        self._place(
            self._cache.tokenizer(key), lambda folder: _save(self._train(samples, size), folder)
        )
        return key

    def _tokenizer_samples(
        self, spools: list[Spool], held: list[np.ndarray]
    ) -> list[tuple[Spool, np.ndarray]]:
        """Training documents per source, `train_bytes` in all, in the mixture's proportions."""
        budget = self._data.tokenizer.train_bytes
        sizes = [
            int(spool.num_bytes[~valid].sum()) for spool, valid in zip(spools, held, strict=True)
        ]
        weights = [source.weight for source in self._data.sources]
        shares = np.array(sizes if None in weights else weights, float)
        shares /= shares.sum()
        samples = []
        for spool, valid, share in zip(spools, held, shares.tolist(), strict=True):
            train = np.flatnonzero(~valid)
            words, num_bytes = spool.words[train], spool.num_bytes[train]
            chosen = under_cap(words, num_bytes, max(1, int(budget * share)), SAMPLE_WORD)
            samples.append((spool, train[chosen]))
        return samples

    def _train(self, samples: list[tuple[Spool, np.ndarray]], vocab_size: int) -> Tokenizer:
        total = sum(int(spool.num_bytes[chosen].sum()) for spool, chosen in samples)
        with self._progress.task("train tokenizer", total=total, unit="B") as task:

            def texts() -> Iterator[str]:
                for spool, chosen in samples:
                    for content in spool.contents(chosen):
                        check_stop(self._stop, "training the tokenizer")
                        task.advance(len(content))
                        yield content.decode()

            return Tokenizer.train(texts(), vocab_size)

    def _place_tokens(
        self, spool: Spool, valid: np.ndarray, tokenizer_key: str, tokenizer: Tokenizer
    ) -> str:
        """Key of one source's folder of tokens, which is made unless a whole one is there.

        A model that was trained with this cache brings its tokenizer back under another key, as a
        given one; its tokens are the same.
        """
        key = digest(
            str(CACHE_VERSION),
            tokenizer.fingerprint,
            spool.words[~valid].tobytes(),
            spool.words[valid].tobytes(),
        )
        self._place(
            self._cache.tokens(key),
            lambda folder: self._tokenise(
                spool, valid, self._cache.tokenizer(tokenizer_key), tokenizer.dtype, folder
            ),
        )
        return key

    def _tokenise(
        self,
        spool: Spool,
        valid: np.ndarray,
        tokenizer: Path,
        dtype: type[np.generic],
        folder: Path,
    ) -> None:
        order = np.concatenate([np.flatnonzero(~valid), np.flatnonzero(valid)])
        spans = spool.path.with_suffix(".spans.npy")
        np.save(spans, spool.spans[order])
        job = EncodeJob(spool.path, spans, tokenizer, spool.are_tokens)
        work = spool.path.with_suffix(".parts")
        work.mkdir(exist_ok=True)
        doing = f"tokenise {spool.name}"
        with self._progress.task(doing, total=spool.content_bytes, unit="B") as task:
            parts = encode(
                job,
                self._data.num_workers or available_cores(),
                work,
                task.advance,
                lambda: check_stop(self._stop, doing),
            )
        write_store(folder, parts, int((~valid).sum()), dtype)

    def _place(self, target: Path, fill: Callable[[Path], None]) -> None:
        """Make a folder of the cache unless it is there and whole."""
        if target.exists():
            try:
                verify_manifest(target)
                return
            except CheckpointError as error:
                logger.info("building again: %s", error)
        with directory_atomic(target) as folder:
            fill(folder)

    def _record(
        self,
        spools: list[Spool],
        held: list[np.ndarray],
        tokenizer_key: str,
        stores: list[str],
        key: str,
    ) -> None:
        target = self._cache.prepared(key)
        with directory_atomic(target) as folder:
            summary = []
            for number, (spool, valid) in enumerate(zip(spools, held, strict=True)):
                listed = f"files-{number}.txt"
                paths = b"".join(os.fsencode(path) + b"\n" for path in spool.files_used)
                (folder / listed).write_bytes(paths)
                tokens = [
                    store.num_tokens
                    for store in open_store(self._cache.tokens(stores[number]), spool.name)
                ]
                summary.append(_summary(spool, valid, tokens, target / listed))
            value = {
                "tokenizer": tokenizer_key,
                "stores": stores,
                "summary": [source.to_json() for source in summary],
            }
            write_json(folder / PREPARED_FILE, value)
            write_manifest(folder)


def split_documents(spools: list[Spool], fraction: float) -> list[np.ndarray]:
    """bool [D] per source: documents of the validation side.

    Either side of a tiny corpus may turn out empty; the document nearest the border then moves.
    """
    words = np.concatenate([spool.words for spool in spools])
    if len(words) < 2:
        raise DataError(
            f"data.sources hold {len(words)} document in all ({spools[0].name}); at least 2 are "
            "needed, one to train on and one to validate with; add documents (text files above "
            "64 kB are cut into several)"
        )
    valid = held_out(words, fraction)
    if not valid.any():
        valid[np.argmin(words[:, SPLIT_WORD])] = True
    if valid.all():
        valid[np.argmax(words[:, SPLIT_WORD])] = False
    return np.split(valid, np.cumsum([len(spool) for spool in spools])[:-1])


def _load_given(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    if (found := tokenizer.decode(tokenizer.encode(LAYOUT))) != LAYOUT:
        logger.warning(
            "tokenizer %s changes text: %r becomes %r; the model will not see the difference",
            path, LAYOUT, found,
        )  # fmt: skip
    return tokenizer


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(folder)
    write_manifest(folder)


def _summary(spool: Spool, valid: np.ndarray, tokens: list[int], file_list: Path) -> SourceSummary:
    def side(chosen: np.ndarray, num_tokens: int) -> SplitCounts:
        return SplitCounts(int(chosen.sum()), int(spool.num_bytes[chosen].sum()), num_tokens)

    counts = spool.counts
    return SourceSummary(
        name=spool.name,
        location=printable(spool.listing.root),
        files=len(spool.files_used),
        duplicates=counts.duplicates,
        empty=counts.empty,
        over_cap=counts.over_cap,
        skipped=tuple(f"{printable(path)}: {reason}" for path, reason in counts.skipped.items()),
        train=side(~valid, tokens[0]),
        valid=side(valid, tokens[1]),
        file_list=file_list,
    )
