"""A source read once into a scratch file: unique documents, under its cap, in hash order.

    files --readers--> documents --hash--> drop empty and duplicate --> scratch file
                                               cap by hash, sort by hash --> spans into it

Called by the corpus before anything is tokenised. The scratch file decouples what follows (training
a tokenizer, tokenising in several processes) from the sources: they are read exactly once, cannot
change halfway, and memory holds about 350 bytes per document instead of the text. Hash order makes
the result independent of file names and order, and is already a thorough shuffle of the documents.
"""

import logging
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paddle_ernie.data.documents import (
    CAP_WORD,
    Document,
    as_words,
    content_hash,
    under_cap,
)
from paddle_ernie.data.megatron import read_megatron
from paddle_ernie.data.readers import UnreadableError, read_file
from paddle_ernie.data.sources import Listing, printable
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import DataError, Interrupted
from paddle_ernie.utils.options import StopFlag

logger = logging.getLogger(__name__)

SHOWN_NAMES = 5
"""Skipped files named in the warning; the summary has all of them."""


@dataclass(frozen=True)
class Spool:
    """The chosen documents of one source. D documents."""

    listing: Listing
    path: Path
    """Scratch file: contents one after the other."""
    spans: np.ndarray
    """int64 [D, 2]: start and stop of each document in the scratch file."""
    words: np.ndarray
    """uint64 [D, 3]: hashes, ascending."""
    num_bytes: np.ndarray
    """int64 [D]: UTF-8 bytes of each document's text."""
    files: np.ndarray
    """int64 [D]: index of each document's file in the listing."""
    counts: "Counts"

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def name(self) -> str:
        """The source."""
        return self.listing.name

    @property
    def are_tokens(self) -> bool:
        """The documents are uint32 token ids instead of text."""
        return self.listing.config.format == "megatron"

    @property
    def content_bytes(self) -> int:
        """Size of the chosen documents in the scratch file."""
        return int((self.spans[:, 1] - self.spans[:, 0]).sum())

    @property
    def files_used(self) -> list[Path]:
        """The files that the chosen documents come from."""
        return [self.listing.files[i].path for i in np.unique(self.files).tolist()]

    def contents(self, indices: np.ndarray) -> Iterator[bytes]:
        """The chosen documents' bytes, one at a time."""
        with self.path.open("rb") as stream:
            for start, stop in self.spans[indices].tolist():
                stream.seek(start)
                yield stream.read(stop - start)


@dataclass
class Counts:
    """What reading a source met."""

    duplicates: int = 0
    """Documents whose content had been seen before, here or in an earlier source."""
    empty: int = 0
    """Null rows and documents of white space only."""
    over_cap: int = 0
    """Documents left out by `max_bytes`."""
    skipped: dict[Path, str] = field(default_factory=dict)
    """Files of a folder that are not text, and why."""


def read_source(
    listing: Listing,
    seen: set[bytes],
    path: Path,
    *,
    token_bytes: np.ndarray | None,
    progress: Progress,
    stop: StopFlag | None,
) -> Spool:
    """Read a source into `path`. `seen` holds the hashes of earlier sources and is added to.

    `token_bytes` (bytes per id) is needed for Megatron sources, whose documents are token ids.
    """
    counts = Counts()
    hashes = bytearray()
    rows = array("q")
    own: set[bytes] = set()
    with (
        progress.task(f"read {listing.name}", total=listing.num_bytes, unit="B") as task,
        path.open("wb") as scratch,
    ):
        for document in _documents(listing, counts, token_bytes, task.advance, stop):
            digest = content_hash(document.content)
            if digest in own or digest in seen:
                counts.duplicates += 1
                continue
            own.add(digest)
            hashes += digest
            rows.extend((len(document.content), document.num_bytes, document.file))
            scratch.write(document.content)
    _warn_skipped(listing, counts)
    if not rows:
        raise DataError(_nothing_found(listing, counts))
    sizes = np.frombuffer(rows, np.int64).reshape(-1, 3)
    spool = _choose(listing, path, as_words(hashes), sizes, counts)
    seen.update(row.tobytes() for row in spool.words)
    return spool


def _choose(
    listing: Listing,
    path: Path,
    words: np.ndarray,
    rows: np.ndarray,
    counts: Counts,
) -> Spool:
    sizes, num_bytes, files = rows.T
    kept = under_cap(words, num_bytes, listing.config.max_bytes, CAP_WORD)
    counts.over_cap = int(len(kept) - kept.sum())
    order = np.lexsort(words.T[::-1])
    order = order[kept[order]]
    stops = np.cumsum(sizes)
    spans = np.stack([stops - sizes, stops], axis=1)[order]
    return Spool(listing, path, spans, words[order], num_bytes[order], files[order], counts)


def _documents(
    listing: Listing,
    counts: Counts,
    token_bytes: np.ndarray | None,
    consumed: Callable[[int], None],
    stop: StopFlag | None,
) -> Iterator[Document]:
    if listing.config.format == "megatron":
        found = _token_documents(listing, token_bytes, consumed)
    else:
        found = _text_documents(listing, counts, consumed)
    for document in found:
        check_stop(stop, f"reading source {listing.name!r}")
        if not document.content.strip():
            counts.empty += 1
        else:
            yield document


def _text_documents(
    listing: Listing, counts: Counts, consumed: Callable[[int], None]
) -> Iterator[Document]:
    for number, file in enumerate(listing.files):
        try:
            for text in read_file(file, listing.config.column, consumed):
                content = (text or "").encode()
                yield Document(content, len(content), number)
        except UnreadableError as error:
            if listing.named_file:
                raise DataError(
                    f"source {listing.name!r}: {file.path}: {error}; convert it to UTF-8 "
                    "(iconv -f ENCODING -t UTF-8) or take it out of data.sources"
                ) from error
            counts.skipped[file.path] = str(error)


def _token_documents(
    listing: Listing, token_bytes: np.ndarray | None, consumed: Callable[[int], None]
) -> Iterator[Document]:
    if token_bytes is None:
        raise DataError(
            f"source {listing.name!r}: {listing.root}: Megatron files hold token ids, which need "
            "the tokenizer they were made with; set data.tokenizer.path"
        )
    for ids in read_megatron(listing.root, len(token_bytes)):
        yield Document(ids.tobytes(), int(token_bytes[ids].sum()), file=0)
        consumed(ids.nbytes)


def check_stop(stop: StopFlag | None, doing: str) -> None:
    """Raise Interrupted if a stop was asked for; scratch files are removed on the way out."""
    if stop:
        raise Interrupted(f"{stop.reason or 'stopped'} while {doing}; a new start begins it again")


def _warn_skipped(listing: Listing, counts: Counts) -> None:
    if not counts.skipped:
        return
    more = len(counts.skipped) - SHOWN_NAMES
    logger.warning(
        "source %r: skipped %d of %d files that are not text: %s%s",
        listing.name,
        len(counts.skipped),
        len(listing.files),
        "; ".join(
            f"{printable(path)}: {reason}"
            for path, reason in [*counts.skipped.items()][:SHOWN_NAMES]
        ),
        f"; and {more} more" if more > 0 else "",
    )


def _nothing_found(listing: Listing, counts: Counts) -> str:
    found = [f"{len(listing.files) - len(counts.skipped)} files read"]
    if counts.empty:
        found.append(f"{counts.empty} empty documents")
    if counts.duplicates:
        found.append(f"{counts.duplicates} duplicates of documents already seen")
    if counts.skipped:
        path, reason = next(iter(counts.skipped.items()))
        found.append(f"{len(counts.skipped)} files that are not text ({path}: {reason})")
    return (
        f"source {listing.name!r}: {listing.root}: no document to train on: {', '.join(found)}; "
        "point it at files with text or remove it"
    )
