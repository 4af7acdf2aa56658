"""Tokenizers built from GGUF metadata, and those gathered from a Hugging Face folder."""

import json
import re

import pytest

from paddle_ernie.convert.tokenizer_files import (
    complete_config,
    gguf_tokenizer_fault,
    write_gguf_tokenizer,
)
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.utils.errors import DataError, InputError
from tests.convert.tiny_gguf import TEMPLATE, tokenizer_settings

TEXTS = [
    "the and 12 'the' \n\n x",
    "naïve — 鼎 😀 e\u0301",
    "",
    "<|im_end|> <tool>\t\u0000",
    "a" * 99,
]


@pytest.fixture
def build(tmp_path):
    def make(rule: str = "smollm", missing: bytes = b"") -> Tokenizer:
        write_gguf_tokenizer(tokenizer_settings(rule, missing), tmp_path)
        return Tokenizer.load(tmp_path)

    return make


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.table[index].decode() for index in tokenizer.encode(text)]


@pytest.mark.parametrize("rule", ["smollm", "gpt-2", "llama-bpe"])
def test_any_text_comes_back(build, rule):
    tokenizer = build(rule)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("smollm", [" the", " ", "1", "2", " and", "'s"]),
        ("gpt-2", [" the", " ", "12", " and", "'s"]),
        ("llama-bpe", [" the", " ", "12", " and", "'s"]),
    ],
)
def test_rules_cut_digits_differently(build, rule, expected):
    """Merges: `1 2` comes before `Ġ 1`, and neither may cross a cut."""
    assert pieces(build(rule), " the 12 and's") == expected


def test_llama_3_cuts_words_after_any_mark(build):
    assert pieces(build("llama-bpe"), "(the") == ["(", "the"]
    assert pieces(build("llama-bpe"), "1234")[0] == "12"


def test_special_tokens(build):
    tokenizer = build()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.config["chat_template"] == TEMPLATE
    assert tokenizer.encode("<|im_start|>", allow_special=True) == [1]
    assert 1 not in tokenizer.encode("<|im_start|>")
    tool = tokenizer.token_id("<tool>")
    assert tool == tokenizer.vocab_size - 1
    assert tokenizer.decode([1, tool, 2]) == "<tool>", "user-defined tokens are text"


def test_transformers_gives_the_same_ids(build, tmp_path):
    from transformers import AutoTokenizer

    tokenizer, theirs = build(), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs.encode(text) == tokenizer.encode(text, allow_special=True)
    assert theirs.eos_token_id == tokenizer.eos_id
    messages = [{"role": "user", "content": "the"}]
    chat = theirs.apply_chat_template(messages, tokenize=False)
    assert chat == "<|im_start|>user\nthe<|im_end|>"


def test_characters_without_tokens_are_marked_not_dropped(build):
    """0x04 is a character, 0xF1 begins those of U+40000-U+7FFFF, 0xFF is in none."""
    tokenizer = build(missing=b"\x04\xf1\xff")
    assert tokenizer.decode(tokenizer.encode("a\x04b\U00055555c\x05")) == "a\ufffdb\ufffdc\x05"
    assert tokenizer.decode(tokenizer.encode_bytes(b"a\xffb\xfe")) == "a\ufffdb\ufffd"
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(b"a\xfeb")) == b"a\xfeb"


def test_a_missing_byte_inside_characters_is_refused(build):
    with pytest.raises(DataError, match=r"1 of 256 bytes have no token.*first: 0x85"):
        build(missing=b"\x85")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.model": "llama"}, "of type 'llama', only 'gpt2'"),
        ({"tokenizer.ggml.pre": "tekken"}, "the rule 'tekken'; known are .*smollm"),
    ],
)
def test_what_cannot_be_built(change, message):
    assert gguf_tokenizer_fault(tokenizer_settings()) is None
    fault = gguf_tokenizer_fault({**tokenizer_settings(), **change})
    assert fault is not None and re.search(message, fault), fault


def test_a_folder_says_things_in_several_files(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir(), folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps({"own": 1, "eos_token": "old"}))
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    config = {"eos_token": {"content": "</s>"}, "chat_template": named}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    special = {"eos_token": "no", "bos_token": "<s>"}
    (source / "special_tokens_map.json").write_text(json.dumps(special))
    complete_config(source, folder)
    found = json.loads((folder / "tokenizer_config.json").read_text())
    expected = {"own": 1, "eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    assert found == {**expected, "chat_template": "D"}
    (source / "chat_template.jinja").write_text("J")
    complete_config(source, folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == "J"


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected a JSON object"):
        complete_config(tmp_path, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        complete_config(tmp_path, tmp_path)
