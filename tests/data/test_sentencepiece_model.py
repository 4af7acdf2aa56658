"""Converted SentencePiece models against the sentencepiece library itself."""

from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.utils.errors import DataError
from tests.data.texts import make_texts

SAMPLES = [*make_texts(30, seed=7), " two  spaces ", "<s>x</s> <unk> <0x41>", "鼎 😀 ﬁ ½", "", "a"]

SETTINGS = {
    "plain": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "normalising": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "no_prefix": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\n", "1"],
        "pad_id": 3,
    },
}


@pytest.fixture(
    scope="module", params=[(kind, name) for kind in ("bpe", "unigram") for name in SETTINGS]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, name = request.param
    prefix = tmp_path_factory.mktemp("spm") / "tokenizer"
    lines = [line for text in make_texts(200) for line in text.splitlines()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        model_type=kind,
        vocab_size=450,
        byte_fallback=True,
        minloglevel=2,
        **SETTINGS[name],
    )
    return prefix.with_suffix(".model")


def test_ids_and_text_agree_with_the_library(model: Path) -> None:
    ours = Tokenizer.load(model)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert ours.vocab_size == theirs.vocab_size()
    assert ours.eos_id == theirs.eos_id()
    assert ours.bos_id == theirs.bos_id()
    assert ours.pad_id == (theirs.pad_id() if theirs.pad_id() >= 0 else theirs.eos_id())
    for text in SAMPLES:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.encode_batch([text])[0].tolist() == ids
        assert ours.decode(ids) == theirs.decode(ids)


@given(text=st.text(max_size=12))
def test_any_text_survives_without_normalisation(plain_model: Tokenizer, text: str) -> None:
    assert plain_model.decode(plain_model.encode(text)) == text


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    prefix = tmp_path_factory.mktemp("spm") / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_texts(100)),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        minloglevel=2,
        **SETTINGS["plain"],
    )
    return Tokenizer.load(prefix.with_suffix(".model"))


def test_converted_model_saves_as_tokenizer_json(plain_model: Tokenizer, tmp_path: Path) -> None:
    plain_model.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == plain_model.fingerprint
    assert loaded.encode("def add(a, b):") == plain_model.encode("def add(a, b):")


def test_model_without_byte_fallback_is_refused(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_texts(100)),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=200,
        minloglevel=2,
    )
    with pytest.raises(DataError, match="256 of 256 bytes have no token"):
        Tokenizer.load(tmp_path)


def test_cut_model_is_refused(plain_model: Tokenizer, tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_texts(100)),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=350,
        byte_fallback=True,
        minloglevel=2,
    )
    path = tmp_path / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match="not a SentencePiece model"):
        Tokenizer.load(path)
