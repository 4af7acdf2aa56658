"""Text sets from a package and from folders, their manifest, and a run that reads them."""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
import zstandard

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.catalog import Package
from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.mixtures import (
    find_made,
    prepare_folder,
    prepare_package,
    read_manifest,
    sources_yaml,
)
from paddle_ernie.data.sources import list_sources
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.errors import DataError
from paddle_ernie.utils.files import sha256
from tests.data.texts import make_texts

ROOT = Path(__file__).resolve().parents[2]
TEXTS = make_texts(30)
PACKAGE = Package("words", "npm", ("words",), "en", "test", "MIT", 1, 1, ("package/*.txt",))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder in which `npm pack words` has left its archive."""
    folder = tmp_path / "work" / "npm-words"
    folder.mkdir(parents=True)
    contents = {f"{n}.txt": text.encode() for n, text in enumerate(TEXTS)}
    contents |= {"bad.txt": b"\xff", "other.md": b"not chosen"}
    with tarfile.open(folder / "words-1.0.tgz", "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return tmp_path / "work"


def rows(path: Path) -> list[dict[str, str]]:
    data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    return [json.loads(line) for line in data.decode().splitlines()]


def test_package_becomes_a_set(
    work: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepare_package(PACKAGE, tmp_path / "out", work, Progress())
    path = tmp_path / "out" / "words.jsonl.zst"
    read = rows(path)
    assert sorted(row["text"] for row in read) == sorted(TEXTS)
    assert {"text": TEXTS[7], "source": "words/package/7.txt"} in read
    assert (made.documents, made.skipped_files, made.version) == (30, 1, "1.0")
    assert (made.licence, made.origin) == ("MIT", "npm words")
    assert made.bytes == sum(len(text.encode()) for text in TEXTS)
    assert made.sha256 == sha256(path)
    assert "skipped words/package/bad.txt: not UTF-8" in caplog.text
    assert read_manifest(tmp_path / "out") == [made]


def test_a_whole_set_is_not_made_again_but_a_damaged_one_is(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = prepare_package(PACKAGE, out, work, Progress())
    path = out / made.file
    inode = path.stat().st_ino
    assert prepare_package(PACKAGE, out, work, Progress()) == made
    assert path.stat().st_ino == inode
    path.write_bytes(path.read_bytes()[:-1])
    assert find_made(out, "words") is None
    assert prepare_package(PACKAGE, out, work, Progress()) == made
    assert sha256(path) == made.sha256


def test_folder_is_read_anew_each_time(write_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder, out = write_folder([*TEXTS[:5], " "], "notes"), tmp_path / "out"
    (folder / "more.jsonl").write_text(json.dumps({"text": TEXTS[5]}) + "\n")
    first = prepare_folder(list_sources([SourceConfig(path=folder)])[0], out, Progress())
    assert sorted(row["text"] for row in rows(out / first.file)) == sorted(TEXTS[:6])
    assert rows(out / first.file)[0]["source"] == "notes/0000.txt"
    (folder / "new.txt").write_text(TEXTS[6])
    second = prepare_folder(list_sources([SourceConfig(path=folder)])[0], out, Progress())
    assert second.documents == 7
    assert read_manifest(out) == [second]


def test_printed_sources_train(
    work: Path,
    write_folder: Callable[..., Path],
    prepare: Callable[..., Corpus],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    sets = [
        prepare_package(PACKAGE, out, work, Progress()),
        prepare_folder(
            list_sources([SourceConfig(path=write_folder(make_texts(20, 5), "no: 5, #1"))])[0],
            out,
            Progress(),
        ),
    ]
    block = yaml.safe_load(sources_yaml(sets, out))["sources"]
    corpus = prepare(*(SourceConfig(**source) for source in block))
    assert [source.name for source in corpus.summary] == ["words", "no: 5, #1"]
    assert [source.documents for source in corpus.summary] == [30, 20]


def test_nothing_found_leaves_nothing(work: Path, tmp_path: Path) -> None:
    moved = Package("words", "npm", ("words",), "en", "test", "MIT", 1, 1, ("gone/*.txt",))
    with pytest.raises(DataError, match=r"words 1\.0 holds no file that matches gone/\*\.txt"):
        prepare_package(moved, tmp_path / "out", work, Progress())
    empty = Package("words", "npm", ("words",), "en", "test", "MIT", 1, 1, ("package/bad.txt",))
    with pytest.raises(DataError, match=r"words: no text found in npm words 1\.0"):
        prepare_package(empty, tmp_path / "out", work, Progress())
    assert not list((tmp_path / "out").iterdir())


def test_foreign_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mixture.json").write_text('[{"name": "x"}]')
    with pytest.raises(DataError, match="not a manifest of text sets"):
        read_manifest(tmp_path)


def test_calls_at_the_same_time_keep_each_others_sets(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from paddle_ernie.config.data import SourceConfig\n"
        "from paddle_ernie.data.mixtures import prepare_folder\n"
        "from paddle_ernie.data.sources import list_sources\n"
        "from paddle_ernie.monitor.progress import Progress\n"
        "for listing in list_sources([SourceConfig(path=Path(p)) for p in sys.argv[2:]]):\n"
        "    prepare_folder(listing, Path(sys.argv[1]), Progress())\n"
    )
    files = [tmp_path / f"{number:02d}.txt" for number in range(60)]
    for file in files:
        file.write_text(file.name)
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    running = [
        subprocess.Popen([*command, *map(str, files[part::4])], cwd=ROOT) for part in range(4)
    ]
    assert [process.wait(300) for process in running] == [0] * 4
    assert [each.name for each in read_manifest(tmp_path / "out")] == [f.name for f in files]
