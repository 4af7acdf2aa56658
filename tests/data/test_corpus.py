"""`prepare_corpus` from real files to stores: content, independence of order, caching, recovery."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.data.mixtures import prepare_folder
from paddle_ernie.data.sources import list_sources
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import DataError, Interrupted
from paddle_ernie.utils.options import StopFlag
from tests.data.test_megatron import write_megatron
from tests.data.texts import make_texts

ROOT = Path(__file__).resolve().parents[2]
TEXTS = make_texts(60)


def texts_of(corpus: Corpus, split: str) -> list[list[str]]:
    """Each source's documents, decoded; checks that every one ends with the end token."""
    sources = []
    for store in getattr(corpus, split):
        documents = [store.document(i).tolist() for i in range(store.num_documents)]
        assert all(ids[-1] == corpus.tokenizer.eos_id for ids in documents)
        sources.append([corpus.tokenizer.decode(ids[:-1]) for ids in documents])
    return sources


def test_every_document_is_there_exactly_once(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    folder = write_folder([*TEXTS, TEXTS[3], " \n", ""])
    corpus = prepare(SourceConfig(path=folder), valid_fraction=0.2)
    train, valid = (texts_of(corpus, split)[0] for split in ("train", "valid"))
    assert sorted(train + valid) == sorted(TEXTS)
    summary = corpus.summary[0]
    assert (summary.name, summary.files, summary.documents) == ("texts", 60, 60)
    assert (summary.duplicates, summary.empty, summary.over_cap) == (1, 2, 0)
    for counts, texts, store in (
        (summary.train, train, corpus.train[0]),
        (summary.valid, valid, corpus.valid[0]),
    ):
        assert counts.documents == len(texts) > 0
        assert counts.bytes == sum(len(text.encode()) for text in texts)
        assert counts.tokens == store.num_tokens
    assert len(summary.file_list.read_text().splitlines()) == 60
    assert corpus.split_bytes("valid") == "".join(valid).encode()
    assert corpus.split_bytes("train", 100) == "".join(train).encode()[:100]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(20)), suffix=st.sampled_from([".txt", ".md"]))
def test_order_and_names_of_files_do_not_matter(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    tmp_path: Path,
    order: list[int],
    suffix: str,
) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    plain = prepare(SourceConfig(path=write_folder(TEXTS[:20]), max_bytes=2000))
    shuffled = [TEXTS[i] for i in order]
    source = SourceConfig(path=write_folder(shuffled, "other", suffix), max_bytes=2000)
    other = prepare(source, cache="other_cache")
    assert other.fingerprint == plain.fingerprint
    assert texts_of(other, "train") == texts_of(plain, "train")
    assert other.tokenizer.fingerprint == plain.tokenizer.fingerprint


def test_a_document_keeps_its_side_when_others_come(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    few = prepare(SourceConfig(path=write_folder(TEXTS, "few")), valid_fraction=0.2)
    many = prepare(
        SourceConfig(path=write_folder([*make_texts(90, seed=1), *TEXTS], "many")),
        valid_fraction=0.2,
    )
    assert set(texts_of(few, "valid")[0]) <= set(texts_of(many, "valid")[0])
    assert set(texts_of(few, "train")[0]) <= set(texts_of(many, "train")[0])


def test_duplicates_across_sources_stay_in_the_first(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    first, second = write_folder(TEXTS[:40], "first"), write_folder(TEXTS[30:], "second")
    corpus = prepare(SourceConfig(path=first, weight=1), SourceConfig(path=second, weight=3))
    train, valid = texts_of(corpus, "train"), texts_of(corpus, "valid")
    assert sorted(train[0] + valid[0]) == sorted(TEXTS[:40])
    assert sorted(train[1] + valid[1]) == sorted(TEXTS[40:])
    assert [source.duplicates for source in corpus.summary] == [0, 10]
    assert corpus.weights == (1.0, 3.0)


def test_cap_counts_what_it_left_out(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    summary = prepare(SourceConfig(path=write_folder(TEXTS), max_bytes=5000)).summary[0]
    assert 4000 < summary.bytes <= 5000
    assert summary.over_cap == 60 - summary.documents > 0
    assert summary.files == summary.documents


def test_one_large_file_is_enough(tmp_path: Path, prepare: Callable[..., Corpus]) -> None:
    text = "".join(make_texts(1500))
    (tmp_path / "book.txt").write_text(text)
    corpus = prepare(SourceConfig(path=tmp_path / "book.txt"))
    assert corpus.summary[0].valid.documents >= 1
    assert len(corpus.split_bytes("train") + corpus.split_bytes("valid")) == len(text.encode())


def test_tiny_corpus_still_has_both_sides(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    corpus = prepare(SourceConfig(path=write_folder(TEXTS[:2])), valid_fraction=0.001)
    assert [len(texts_of(corpus, split)[0]) for split in ("train", "valid")] == [1, 1]
    with pytest.raises(DataError, match=r"hold 1 document in all .*at least 2 are needed"):
        prepare(SourceConfig(path=write_folder(TEXTS[:1], "one")))


def test_warm_start_does_not_read_the_files(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus], tmp_path: Path
) -> None:
    folder = write_folder(TEXTS)
    first = prepare(SourceConfig(path=folder))
    lock = tmp_path / "cache" / ".lock"
    lock.unlink()
    assert prepare(SourceConfig(path=folder)).fingerprint == first.fingerprint
    assert not lock.exists(), "only a build, which reads, takes the lock"


def test_changed_file_is_noticed_even_with_its_old_size_and_time(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    folder = write_folder(TEXTS)
    first = prepare(SourceConfig(path=folder))
    file = folder / "0000.txt"
    before = file.stat()
    file.write_bytes(b"x" * before.st_size)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert prepare(SourceConfig(path=folder)).fingerprint != first.fingerprint


def test_file_names_that_are_not_utf8(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus], tmp_path: Path
) -> None:
    folder = write_folder(TEXTS)
    for name, content in ((b"good\xff.txt", b"text"), (b"bad\xfe.txt", b"\x00")):
        with open(os.fsencode(folder) + b"/" + name, "wb") as file:
            file.write(content)
    summary = prepare(SourceConfig(path=folder)).summary[0]
    assert summary.documents == 61
    assert b"good\xff.txt\n" in summary.file_list.read_bytes()
    assert "bad\\udcfe.txt: binary" in summary.skipped[0]
    output = tmp_path / "out"
    made = prepare_folder(list_sources([SourceConfig(path=folder)])[0], output, Progress())
    assert made.documents == 61


def test_log_says_where_the_files_are_listed(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_folder(TEXTS)
    for _ in ("built", "found in the cache"):
        caplog.clear()
        with caplog.at_level(logging.INFO, "paddle_ernie"):
            summary = prepare(SourceConfig(path=folder)).summary[0]
        (line,) = [r.getMessage() for r in caplog.records if "listed in" in r.getMessage()]
        assert "source 'texts': 60 documents" in line
        listed = Path(re.search(r"from 60 files \(listed in (.*)\)", line)[1])
        assert listed.read_text().splitlines() == sorted(str(p) for p in folder.iterdir())
        assert summary.to_json()["file_list"] == str(listed)


def test_lossy_tokenizer_is_warned_of(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    tokenizer_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    definition = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**definition, "normalizer": {"type": "Lowercase"}}))
    source = SourceConfig(path=write_folder(TEXTS))
    prepare(source, tokenizer=TokenizerConfig(path=tokenizer_dir))
    assert "changes text" not in caplog.text
    prepare(source, tokenizer=TokenizerConfig(path=path))
    assert "tokenizer.json changes text: 'Ab " in caplog.text


def test_touched_files_are_read_but_not_tokenised_again(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus], tmp_path: Path
) -> None:
    folder = write_folder(TEXTS)
    first = prepare(SourceConfig(path=folder))
    tokens = next((tmp_path / "cache" / "tokens").glob("*/tokens.bin"))
    inode = tokens.stat().st_ino
    (folder / "0007.txt").touch()
    second = prepare(SourceConfig(path=folder))
    assert second.fingerprint == first.fingerprint
    assert tokens.stat().st_ino == inode
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped bit": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    "what",
    [
        "tokens/*/tokens.bin",
        "tokens/*/offsets.bin",
        "tokens/*/store.json",
        "tokens/*/manifest.json",
        "tokenizers/*/tokenizer.json",
        "prepared/*/prepared.json",
        "prepared/*/files-0.txt",
    ],
)
def test_damaged_cache_is_rebuilt(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    what: str,
    how: str,
) -> None:
    folder = write_folder(TEXTS)
    first = prepare(SourceConfig(path=folder))
    expected = texts_of(first, "train")
    victim = next((tmp_path / "cache").glob(what))
    DAMAGE[how](victim)
    with caplog.at_level(logging.WARNING):
        again = prepare(SourceConfig(path=folder))
    assert again.fingerprint == first.fingerprint
    assert texts_of(again, "train") == expected
    warnings = [r.getMessage() for r in caplog.records if "cache is damaged" in r.getMessage()]
    assert len(warnings) == 1
    assert str(victim.parent) in warnings[0]
    caplog.clear()
    prepare(SourceConfig(path=folder))
    assert not caplog.records


def test_stop_leaves_nothing_half_written(
    write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    stop = StopFlag()
    stop.set("SIGTERM")
    data = DataConfig(sources=[SourceConfig(path=write_folder(TEXTS))])
    with pytest.raises(Interrupted, match="SIGTERM while reading source 'texts'"):
        prepare_corpus(data, cache_dir=tmp_path / "cache", stop=stop)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_two_processes_share_one_build(write_folder: Callable[..., Path], tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig\n"
        "from paddle_ernie.data.corpus import prepare_corpus\n"
        "data = DataConfig(sources=[SourceConfig(path=Path(sys.argv[1]))],\n"
        "                  tokenizer=TokenizerConfig(vocab_size=400))\n"
        "print(prepare_corpus(data, cache_dir=Path(sys.argv[2])).fingerprint)\n"
    )
    command = [sys.executable, "-c", program, str(write_folder(TEXTS)), str(tmp_path / "cache")]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1
    folders = [len(list((tmp_path / "cache" / kind).iterdir())) for kind in ("tokens", "prepared")]
    assert folders == [1, 1]


def test_given_tokenizer_and_its_override(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    tokenizer: Tokenizer,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    source = SourceConfig(path=write_folder(TEXTS))
    given_tokenizer = TokenizerConfig(path=tokenizer_dir / "tokenizer.json")
    corpus = prepare(source, tokenizer=given_tokenizer)
    assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
    assert corpus.tokenizer.config == tokenizer.config
    other_tokenizer = TokenizerConfig(vocab_size=350)
    data = DataConfig(sources=[source], tokenizer=other_tokenizer)
    overridden = prepare_corpus(data, cache_dir=tmp_path / "c", tokenizer_path=tokenizer_dir)
    assert overridden.fingerprint == corpus.fingerprint
    assert Tokenizer.load(overridden.tokenizer_dir).fingerprint == tokenizer.fingerprint


def test_own_tokenizer_given_back_does_not_tokenise_again(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus], tmp_path: Path
) -> None:
    """As when a model's training goes on: it brings the tokenizer that was trained here."""
    source = SourceConfig(path=write_folder(TEXTS))
    first = prepare(source)
    given_back = prepare(source, tokenizer=TokenizerConfig(path=first.tokenizer_dir))
    assert given_back.fingerprint == first.fingerprint
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


def test_megatron_source(
    prepare: Callable[..., Corpus], tokenizer: Tokenizer, tokenizer_dir: Path, tmp_path: Path
) -> None:
    documents = [tokenizer.encode(text) for text in TEXTS]
    ended = [[ids, [tokenizer.eos_id]] if i % 2 else [ids] for i, ids in enumerate(documents)]
    write_megatron(tmp_path / "data", ended, "<u2")
    source = SourceConfig(path=tmp_path / "data", format="megatron")
    corpus = prepare(source, tokenizer=TokenizerConfig(path=tokenizer_dir))
    train, valid = (texts_of(corpus, split)[0] for split in ("train", "valid"))
    assert sorted(train + valid) == sorted(TEXTS)
    assert corpus.summary[0].bytes == sum(len(text.encode()) for text in TEXTS)
    with pytest.raises(DataError, match=r"need the tokenizer.*set data.tokenizer.path"):
        prepare(source)


def test_mixed_formats(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus], tmp_path: Path
) -> None:
    folder = write_folder(TEXTS[:30])
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[30:])
    (folder / "more.jsonl").write_text(lines)
    corpus = prepare(SourceConfig(path=folder))
    train, valid = (texts_of(corpus, split)[0] for split in ("train", "valid"))
    assert sorted(train + valid) == sorted(TEXTS)
    assert corpus.summary[0].files == 31


def test_files_that_are_not_text_are_reported(
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_folder(TEXTS)
    (folder / "bad.txt").write_bytes(b"abc\xff")
    (folder / "image.txt").write_bytes(b"\x89PNG\x00")
    corpus = prepare(SourceConfig(path=folder))
    assert corpus.summary[0].skipped == (
        f"{folder / 'bad.txt'}: not UTF-8: byte 0xFF at offset 3",
        f"{folder / 'image.txt'}: binary (NUL byte at offset 4)",
    )
    assert corpus.summary[0].documents == 60
    assert "skipped 2 of 62 files that are not text" in caplog.text
    expected = re.escape(f"{folder / 'bad.txt'}: not UTF-8: byte 0xFF at offset 3; convert it")
    with pytest.raises(DataError, match=expected):
        prepare(SourceConfig(path=folder / "bad.txt"))


def test_source_without_documents_is_named(
    write_folder: Callable[..., Path], prepare: Callable[..., Corpus]
) -> None:
    folder = write_folder(["", " \n", "\t"])
    with pytest.raises(DataError, match="no document to train on: 3 files read, 3 empty documents"):
        prepare(SourceConfig(path=folder))
    again = write_folder(TEXTS[:5], "again")
    with pytest.raises(DataError, match=r"source 'again-2': .* 5 duplicates of documents already"):
        prepare(SourceConfig(path=again), SourceConfig(path=again))


def test_python_library_as_a_source(prepare: Callable[..., Corpus]) -> None:
    source = SourceConfig(format="python_stdlib", max_bytes=300_000)
    corpus = prepare(source, tokenizer=TokenizerConfig(vocab_size=600, train_bytes=100_000))
    summary = corpus.summary[0]
    assert 200_000 < summary.bytes <= 300_000
    used = summary.file_list.read_text().splitlines()
    assert len(used) == summary.files > 3
    assert all(path.endswith(".py") for path in used)
    assert b"def " in corpus.split_bytes("train")
    assert np.concatenate([store.tokens for store in corpus.train]).max() < 600
