"""A tokenizer and shorthands shared by the data tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.data.tokenizer import Tokenizer
from tests.data.texts import make_texts


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(make_texts(200), 400)


@pytest.fixture(scope="session")
def tokenizer_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)
    return folder


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes texts to numbered files of a new folder."""

    def write(texts: list[str], name: str = "texts", suffix: str = ".txt") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            (folder / f"{number:04d}{suffix}").write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., Corpus]:
    """`prepare_corpus` on sources, with a small vocabulary and a cache in the test's folder."""

    def run(*sources: SourceConfig, cache: str = "cache", **settings: object) -> Corpus:
        settings.setdefault("tokenizer", TokenizerConfig(vocab_size=400))
        data = DataConfig(sources=list(sources), **settings)
        return prepare_corpus(data, cache_dir=tmp_path / cache)

    return run
