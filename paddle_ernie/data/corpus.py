"""From a `data:` section to tokens in memory-mapped files, for whoever needs text.

    sources --list--> files --read once--> unique documents --hash--> train | valid
                                                 |
                                   tokenizer: given, or trained on the training side
                                                 |
                                             tokenised --> TokenStore per source and side

`prepare_corpus` does this once per content and settings and keeps the result in a cache; the next
start finds it by file names, sizes and times without reading any text. A cache that was damaged is
noticed by its checksums and built again. Equal documents give an equal corpus, whatever their files
are called and in whatever order they come.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paddle_ernie.config.data import DataConfig
from paddle_ernie.data.build import CACHE_VERSION, PREPARED_FILE, CorpusBuilder
from paddle_ernie.data.cache import Cache, digest
from paddle_ernie.data.sources import Listing, list_sources
from paddle_ernie.data.spool import check_stop
from paddle_ernie.data.store import TokenStore, open_store
from paddle_ernie.data.summary import SourceSummary
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.files import sha256
from paddle_ernie.utils.manifest import verify_manifest
from paddle_ernie.utils.options import StopFlag

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Tokenised sources. The order of `train`, `valid` and `summary` is that of `data.sources`."""

    tokenizer: Tokenizer
    tokenizer_dir: Path
    """Folder with the tokenizer's files, to be copied into model directories."""
    train: list[TokenStore]
    valid: list[TokenStore]
    summary: list[SourceSummary]
    weights: tuple[float, ...] | None
    """The sources' configured shares of the training rows; None: by size."""
    fingerprint: str
    """Equal for equal tokens in an equal order of sources."""

    def split_bytes(self, split: Literal["train", "valid"], max_bytes: int | None = None) -> bytes:
        """Text of one side, decoded from its tokens: what byte-level baselines are measured on.

        With `max_bytes`, each source gives a part in proportion to its tokens.
        """
        stores = self.train if split == "train" else self.valid
        total = max(sum(store.num_tokens for store in stores), 1)
        pieces = []
        for store in stores:
            limit = None if max_bytes is None else max_bytes * store.num_tokens // total
            pieces.append(_store_bytes(store, self.tokenizer, limit))
        return b"".join(pieces)


def prepare_corpus(
    data: DataConfig,
    *,
    cache_dir: Path,
    tokenizer_path: Path | None = None,
    progress: Progress | None = None,
    stop: StopFlag | None = None,
) -> Corpus:
    """Build the corpus or find it in `cache_dir`.

    `tokenizer_path` (a model directory, say) takes the place of `data.tokenizer`. A stop that is
    asked for meanwhile raises Interrupted and leaves nothing half-written.
    """
    listings = list_sources(data.sources)
    given = tokenizer_path or data.tokenizer.path
    key = _prepared_key(data, listings, given)
    cache = Cache(cache_dir)
    corpus = _open_prepared(cache, key, data, logger.debug)
    if corpus is None:
        corpus = _build(cache, key, data, listings, given, progress or Progress(), stop)
    for source in corpus.summary:
        logger.info("%s", source.describe())
    return corpus


def _build(
    cache: Cache,
    key: str,
    data: DataConfig,
    listings: list[Listing],
    given: Path | None,
    progress: Progress,
    stop: StopFlag | None,
) -> Corpus:
    with cache.building(lambda: check_stop(stop, "waiting for another process")) as scratch:
        # Perhaps another process built it while this one waited for the lock.
        corpus = _open_prepared(cache, key, data, logger.warning)
        if corpus is None:
            builder = CorpusBuilder(data, cache, scratch, progress, stop)
            builder.build(listings, given, key)
            corpus = _open_prepared(cache, key, data, logger.warning)
    if corpus is None:
        raise CheckpointError(f"cache {cache.root}: what was just written cannot be read back")
    return corpus


def _prepared_key(data: DataConfig, listings: list[Listing], given: Path | None) -> str:
    files = [
        [str(file.path.absolute()), file.kind, file.size, file.mtime_ns, file.ctime_ns]
        for listing in listings
        for file in listing.files
    ]
    settings = data.model_dump(mode="json", include={"sources", "tokenizer", "valid_fraction"})
    tokenizer = [sha256(path) for path in Tokenizer.files(given)] if given else []
    names = [listing.name for listing in listings]
    return digest(str(CACHE_VERSION), settings, names, tokenizer, files)


def _open_prepared(
    cache: Cache, key: str, data: DataConfig, log: Callable[..., None]
) -> Corpus | None:
    """The corpus if it is there and whole; what is wrong with a damaged one is logged."""
    folder = cache.prepared(key)
    if not folder.exists():
        return None
    try:
        verify_manifest(folder)
        found = json.loads((folder / PREPARED_FILE).read_text())
        tokenizer_dir = cache.tokenizer(found["tokenizer"])
        verify_manifest(tokenizer_dir)
        summary = [SourceSummary.from_json(value, folder) for value in found["summary"]]
        pairs = [
            open_store(cache.tokens(store), source.name)
            for store, source in zip(found["stores"], summary, strict=True)
        ]
    except CheckpointError as error:
        fault = str(error).partition("; ")[0]  # without its advice, which is for checkpoints
        log("the token cache is damaged (%s); it is built again, nothing needs to be done", fault)
        return None
    weights = [source.weight for source in data.sources if source.weight is not None]
    return Corpus(
        tokenizer=Tokenizer.load(tokenizer_dir),
        tokenizer_dir=tokenizer_dir,
        train=[train for train, _ in pairs],
        valid=[valid for _, valid in pairs],
        summary=summary,
        weights=tuple(weights) or None,
        fingerprint=digest(found["stores"]),
    )


def _store_bytes(store: TokenStore, tokenizer: Tokenizer, max_bytes: int | None) -> bytes:
    """Text of a store's documents in order, cut at `max_bytes`."""
    pieces: list[bytes] = []
    size = 0
    for index in range(store.num_documents):
        if max_bytes is not None and size >= max_bytes:
            break
        pieces.append(tokenizer.decode_bytes(store.document(index).tolist()))
        size += len(pieces[-1])
    return b"".join(pieces)[:max_bytes]
