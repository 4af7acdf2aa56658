"""Documents of a scratch file to token ids, in this process or in several.

Called by `store`, which owns the result. Each worker is `python -m paddle_ernie.data.encode`: it
takes a contiguous range of documents (equal shares of bytes; hash order makes shares alike), maps
the scratch file, and appends to two files of its own, so nothing travels between processes. How far
a worker got is the length of its files, which is all the parent looks at.

    docs + spans.npy --+--> worker 0 --> part-0.tokens, part-0.lengths --+
                       +--> worker 1 --> part-1.tokens, part-1.lengths --+--> store joins them

A plain command instead of `multiprocessing`: it neither forks a process that holds threads nor runs
the user's main script a second time.
"""

import errno
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paddle_ernie.data.tokenizer import Tokenizer

CHUNK_BYTES = 1 << 18
"""Text encoded per call: enough to hide the call, little enough for a smooth progress bar."""

WORKER_BYTES = 2_000_000
"""A worker takes 0.3 s to start, the time of about 1 MB; below this share one is not worth it."""

POLL_SECONDS = 0.05
DISK_FULL = 28
"""Exit code of a worker that found no space left (the number of ENOSPC on Linux)."""

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class EncodeJob:
    """Documents to encode, and where."""

    docs: Path
    """Scratch file of document contents."""
    spans: Path
    """.npy file, int64 [D, 2]: start and stop of each document."""
    tokenizer: Path
    """Tokenizer folder."""
    are_tokens: bool
    """The contents are uint32 ids already (Megatron); they only get an end token."""


def encode(
    job: EncodeJob,
    workers: int,
    work: Path,
    advance: Callable[[int], None],
    check: Callable[[], None],
    worker_bytes: int = WORKER_BYTES,
) -> list[Path]:
    """Encode all documents; returns the stems of the parts in document order.

    `advance` is told bytes of content; `check` may raise to stop early.
    """
    spans = np.load(job.spans)
    total = int((spans[:, 1] - spans[:, 0]).sum())
    workers = max(1, min(workers, total // worker_bytes))
    if total < worker_bytes:
        return [_encode_here(job, len(spans), work / "part-0", advance, check)]
    ends = _equal_shares(spans, workers)
    parts = [work / f"part-{i}" for i in range(workers)]
    ranges = zip([0, *ends[:-1]], ends, parts, strict=True)
    running = [_start(job, first, last, part) for first, last, part in ranges]
    try:
        _watch(running, parts, spans, [0, *ends[:-1]], advance, check)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return parts


def _encode_here(
    job: EncodeJob,
    documents: int,
    part: Path,
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> Path:
    def encoded(size: int) -> None:
        advance(size)
        check()

    encode_range(job, 0, documents, part, encoded)
    return part


def encode_range(
    job: EncodeJob, first: int, last: int, part: Path, encoded: Callable[[int], None]
) -> None:
    """Documents [first, last) to `part`.tokens (the tokenizer's dtype) and `part`.lengths (int64).

    Every document ends with the end token. `encoded` is called with the bytes of each chunk.
    """
    tokenizer = Tokenizer.load(job.tokenizer)
    spans = np.load(job.spans)[first:last].tolist()
    with (
        job.docs.open("rb") as docs,
        mmap.mmap(docs.fileno(), 0, access=mmap.ACCESS_READ) as contents,
        Path(f"{part}.tokens").open("wb") as tokens,
        Path(f"{part}.lengths").open("wb") as lengths,
    ):
        at = 0
        while at < len(spans):
            chunk, size = [], 0
            while at < len(spans) and (not chunk or size < CHUNK_BYTES):
                start, stop = spans[at]
                chunk.append(contents[start:stop])
                size += stop - start
                at += 1
            documents = [_ended(ids, tokenizer) for ids in _ids(chunk, tokenizer, job.are_tokens)]
            tokens.write(np.concatenate(documents).tobytes())
            lengths.write(np.array([len(ids) for ids in documents], np.int64).tobytes())
            lengths.flush()
            encoded(size)


def _ids(chunk: list[bytes], tokenizer: Tokenizer, are_tokens: bool) -> list[np.ndarray]:
    if are_tokens:
        return [np.frombuffer(content, "<u4").astype(tokenizer.dtype) for content in chunk]
    return tokenizer.encode_batch([content.decode() for content in chunk])


def _ended(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    if len(ids) and ids[-1] == tokenizer.eos_id:
        return ids
    return np.append(ids, np.array(tokenizer.eos_id, ids.dtype))


def _equal_shares(spans: np.ndarray, workers: int) -> list[int]:
    """Where each worker's range ends, so that all have about the same bytes."""
    done = np.cumsum(spans[:, 1] - spans[:, 0])
    targets = done[-1] * np.arange(1, workers) / workers
    return [*np.searchsorted(done, targets).tolist(), len(spans)]


def _start(job: EncodeJob, first: int, last: int, part: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "paddle_ernie.data.encode"]
    command += [str(job.docs), str(job.spans), str(job.tokenizer), str(int(job.are_tokens))]
    command += [str(first), str(last), str(part), str(os.getpid())]
    paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",  # the processes are the parallelism
    }
    with Path(f"{part}.errors").open("wb") as errors:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends its workers.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            start_new_session=True,
        )  # fmt: skip


def _watch(
    running: "list[subprocess.Popen[bytes]]",
    parts: list[Path],
    spans: np.ndarray,
    firsts: list[int],
    advance: Callable[[int], None],
    check: Callable[[], None],
) -> None:
    """Wait for all workers, reporting what their files say; the first failure ends it."""
    before = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
    reported = 0
    while True:
        finished = [process.poll() is not None for process in running]
        done = 0
        for part, first in zip(parts, firsts, strict=True):
            lengths = Path(f"{part}.lengths")
            documents = lengths.stat().st_size // 8 if lengths.exists() else 0
            done += int(before[first + documents] - before[first])
        advance(done - reported)
        reported = done
        for process, part in zip(running, parts, strict=True):
            if process.poll() == DISK_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))
            if process.poll():
                tail = Path(f"{part}.errors").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"a tokenising worker ended with {process.returncode}:\n{tail}")
        if all(finished):
            return
        check()
        time.sleep(POLL_SECONDS)


def _main(arguments: list[str]) -> None:
    docs, spans, tokenizer, are_tokens, first, last, part, parent = arguments
    job = EncodeJob(Path(docs), Path(spans), Path(tokenizer), are_tokens == "1")

    def orphaned(_: int) -> None:
        if os.getppid() != int(parent):
            sys.exit("the process that started this worker is gone")

    try:
        encode_range(job, int(first), int(last), Path(part), orphaned)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            sys.exit(DISK_FULL)
        raise


if __name__ == "__main__":
    _main(sys.argv[1:])
