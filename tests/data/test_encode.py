"""Tokenising in worker processes against tokenising here."""

from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.data.encode import EncodeJob, encode, encode_range
from paddle_ernie.data.tokenizer import Tokenizer
from tests.data.texts import make_texts

SMALL_SHARE = 1000
"""Bytes a worker is started for, so that little text goes to workers."""


def never() -> None:
    """A check that never asks for a stop."""


def write_job(folder: Path, contents: list[bytes], tokenizer: Path) -> EncodeJob:
    (folder / "docs").write_bytes(b"".join(contents))
    stops = np.cumsum([len(content) for content in contents])
    spans = np.stack([stops - [len(content) for content in contents], stops], axis=1)
    np.save(folder / "spans.npy", spans)
    return EncodeJob(folder / "docs", folder / "spans.npy", tokenizer, are_tokens=False)


def joined(parts: list[Path], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    tokens = [np.fromfile(f"{part}.tokens", dtype) for part in parts]
    lengths = [np.fromfile(f"{part}.lengths", np.int64) for part in parts]
    return np.concatenate(tokens), np.concatenate(lengths)


@pytest.fixture
def large_job(tmp_path: Path, tokenizer_dir: Path) -> EncodeJob:
    """Documents of very different sizes."""
    texts = make_texts(300)
    documents = ["".join(texts), *texts, "".join(texts[:100])]
    return write_job(tmp_path, [text.encode() for text in documents], tokenizer_dir)


def test_workers_give_the_ids_of_one_process(
    large_job: EncodeJob, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    advanced: list[int] = []
    parts = encode(large_job, 2, tmp_path, advanced.append, never, SMALL_SHARE)
    assert len(parts) == 2
    spans = np.load(large_job.spans)
    here: list[int] = []
    encode_range(large_job, 0, len(spans), tmp_path / "here", here.append)
    for theirs, ours in zip(
        joined(parts, tokenizer.dtype), joined([tmp_path / "here"], tokenizer.dtype), strict=True
    ):
        np.testing.assert_array_equal(theirs, ours)
    assert sum(advanced) == sum(here) == (spans[:, 1] - spans[:, 0]).sum()


def test_ids_are_those_of_encode_with_an_end_token(
    tmp_path: Path, tokenizer: Tokenizer, tokenizer_dir: Path
) -> None:
    texts = [*make_texts(20), "<|endoftext|>"]
    job = write_job(tmp_path, [text.encode() for text in texts], tokenizer_dir)
    tokens, lengths = joined(encode(job, 4, tmp_path, lambda _: None, never), tokenizer.dtype)
    expected = [[*tokenizer.encode(text), tokenizer.eos_id] for text in texts]
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [i for ids in expected for i in ids]


def test_stop_ends_the_workers(large_job: EncodeJob, tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(large_job, 2, tmp_path, lambda _: None, stop, SMALL_SHARE)
    running = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(p)]
    assert not running


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # the process ended meanwhile
        return ""


def test_failing_worker_shows_its_error(large_job: EncodeJob, tmp_path: Path) -> None:
    broken = EncodeJob(large_job.docs, large_job.spans, tmp_path / "nowhere", are_tokens=False)
    with pytest.raises(RuntimeError, match=r"worker ended with 1:[\s\S]*no such file or folder"):
        encode(broken, 2, tmp_path, lambda _: None, never, SMALL_SHARE)
