"""The tokenizer's promises, with `transformers` and generated cases as references."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from paddle_ernie.data import chat
from paddle_ernie.data.tokenizer import Tokenizer, without_surrogates
from paddle_ernie.utils.errors import DataError
from tests.data.texts import make_texts

PIECES = st.sampled_from([*chat.SPECIAL_TOKENS[:16], "<|", "|>", "<", "endoftext", "<0x41>", " "])
MARKED_TEXT = st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join)
SPECIAL_IDS = range(chat.NUM_SPECIAL_TOKENS)


@given(data=st.binary(max_size=200))
def test_any_bytes_survive(tokenizer: Tokenizer, data: bytes) -> None:
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


@given(text=MARKED_TEXT)
def test_any_text_survives_and_never_becomes_special(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(SPECIAL_IDS)
    assert ids == tokenizer.encode_batch([text])[0].tolist()


@given(text=MARKED_TEXT)
def test_bytes_of_text_are_encoded_like_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode_bytes(text.encode()) == tokenizer.encode(text)


@given(text=MARKED_TEXT)
def test_token_bytes_sum_to_the_size_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.token_bytes[tokenizer.encode(text)].sum() == len(text.encode())


@given(data=st.binary(max_size=60))
def test_streaming_gives_the_text_of_decoding_at_once(tokenizer: Tokenizer, data: bytes) -> None:
    streamer = tokenizer.streamer()
    ids = tokenizer.encode_bytes(data)
    streamed = "".join([streamer.push(i) for i in ids]) + streamer.flush()
    assert streamed == tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_streamer_holds_back_half_a_character(tokenizer: Tokenizer) -> None:
    streamer = tokenizer.streamer()
    ids = tokenizer.encode_bytes("鼎".encode())
    assert len(ids) > 1
    assert [streamer.push(i) for i in ids] == [""] * (len(ids) - 1) + ["鼎"]


def test_control_tokens_are_silent_and_tags_are_text(tokenizer: Tokenizer) -> None:
    text = "<|turn_start|>user\nhi<|turn_end|><tool_call>{}</tool_call><|endoftext|>"
    ids = tokenizer.encode(text, allow_special=True)
    assert tokenizer.token_id("<|turn_start|>") == ids[0]
    assert ids[-1] == tokenizer.eos_id
    assert tokenizer.decode(ids) == "user\nhi<tool_call>{}</tool_call>"


def test_sizes_and_roles(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 400 == len(tokenizer.token_bytes)
    assert [tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id] == [0, 1, 2]
    assert not tokenizer.token_bytes[: len(chat.CONTROL_TOKENS)].any()
    assert tokenizer.dtype is np.uint16
    with pytest.raises(DataError, match="no special token '<nope>'"):
        tokenizer.token_id("<nope>")


def test_every_digit_is_a_token(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("1234567890")) == 10


def test_least_vocabulary_holds_bytes_and_specials() -> None:
    least = Tokenizer.train(["aaaa aaaa"], 300)
    assert least.vocab_size <= 300
    assert least.decode_bytes(least.encode_bytes(bytes(range(256)))) == bytes(range(256))


def test_training_is_deterministic_across_processes(tokenizer: Tokenizer) -> None:
    program = (
        "from paddle_ernie.data.tokenizer import Tokenizer\n"
        "from tests.data.texts import make_texts\n"
        "print(Tokenizer.train(reversed(make_texts(200)), 400).fingerprint)\n"
    )
    root = Path(__file__).resolve().parents[2]
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == tokenizer.fingerprint


def test_saved_tokenizer_loads_in_transformers(tokenizer: Tokenizer, tokenizer_dir: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    assert len(theirs) == tokenizer.vocab_size
    ours = (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id)
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id) == ours
    for text in [*make_texts(20), "a<|turn_end|>b <think>c</think>", " \n\t x  \r\n", "1,234.5 é"]:
        ids = tokenizer.encode(text, allow_special=True)
        assert theirs(text).input_ids == ids
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer, tokenizer_dir: Path) -> None:
    loaded = Tokenizer.load(tokenizer_dir)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.config == tokenizer.config
    assert Tokenizer.load(tokenizer_dir / "tokenizer.json").eos_id == tokenizer.eos_id


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert without_surrogates("\ud83d\ude00") == "😀"


def altered(tokenizer_dir: Path, target: Path, change: dict) -> Path:
    """A copy of the tokenizer with some keys of tokenizer.json replaced."""
    definition = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    for key, value in change.items():
        part = definition["model"] if key in definition["model"] else definition
        part[key] = value
    (target / "tokenizer.json").write_text(json.dumps(definition))
    return target


def test_plain_added_tokens_stay_vocabulary(tokenizer_dir: Path, tmp_path: Path) -> None:
    """GPT-NeoX's runs of spaces are added tokens, and documents are meant to use them."""
    definition = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    extra = [
        {"id": 400, "content": "<|extra|>", "special": True, **flags},
        {"id": 401, "content": "        ", "special": False, **flags},
    ]
    added = definition["added_tokens"] + extra
    loaded = Tokenizer.load(altered(tokenizer_dir, tmp_path, {"added_tokens": added}))
    assert loaded.encode("        ") == [401]
    assert 400 not in loaded.encode("<|extra|>")
    assert loaded.encode("<|extra|>", allow_special=True) == [400]
    assert loaded.vocab_size == 402


def test_gap_before_an_added_token_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    added = json.loads((tokenizer_dir / "tokenizer.json").read_text())["added_tokens"]
    added = [*added, {**added[0], "id": 500, "content": "<|far|>"}]
    altered(tokenizer_dir, tmp_path, {"added_tokens": added})
    with pytest.raises(DataError, match=r"'<\|far\|>' is listed with id 500 but loads with id 400"):
        Tokenizer.load(tmp_path)


def test_vocabulary_without_some_byte_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((tokenizer_dir / "tokenizer.json").read_text())["model"]["vocab"]
    smaller = {piece: i for piece, i in vocabulary.items() if piece != "ð"}
    altered(tokenizer_dir, tmp_path, {"vocab": smaller})
    with pytest.raises(DataError, match=r"1 of 256 bytes have no token \(first: 0xF0"):
        Tokenizer.load(tmp_path)


def test_tokenizer_without_end_token_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    altered(tokenizer_dir, tmp_path, {"added_tokens": []})
    with pytest.raises(DataError, match="no token that ends a document; name one as eos_token"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read as JSON"),
        ("tokenizer.json", "[]", "expected a JSON object, found list"),
        ("tokenizer.json", '{"a": 1}', "it has no model.vocab"),
        ("tokenizer.model", "not a model", "not a SentencePiece model"),
        ("notes.txt", "", "holds neither tokenizer.json nor a .model"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'x'}: no such file or folder")):
        Tokenizer.load(tmp_path / "x")


def test_unused_byte_pieces_are_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    """All 256 bytes have a token, but the pipeline never makes them: text would just vanish."""
    altered(tokenizer_dir, tmp_path, {"pre_tokenizer": {"type": "Whitespace"}})
    with pytest.raises(DataError, match=r"loses text: '.*' comes back as ''; its pre-tokenizer"):
        Tokenizer.load(tmp_path)


def test_switched_off_byte_fallback_is_refused(tmp_path: Path) -> None:
    pieces = [["<unk>", 0.0], ["</s>", 0.0], *([f"<0x{byte:02X}>", -9.0] for byte in range(256))]
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    end = {"id": 1, "content": "</s>", "special": True, **flags}
    definition = {"version": "1.0", "model": model, "added_tokens": [end]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(definition))
    with pytest.raises(DataError, match=r"loses text: .* its model must have byte_fallback"):
        Tokenizer.load(path)
    model["byte_fallback"] = True
    path.write_text(json.dumps(definition))
    assert Tokenizer.load(path).decode_bytes(Tokenizer.load(path).encode("aé")) == "aé".encode()


def test_space_that_encoding_puts_in_front_is_taken_away(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    definition = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    steps = definition["pre_tokenizer"]["pretokenizers"]
    steps[1]["add_prefix_space"] = True
    altered(tokenizer_dir, tmp_path, {"pre_tokenizer": {**steps[1], "use_regex": True}})
    loaded = Tokenizer.load(tmp_path)
    assert loaded.decode(loaded.encode("def f():\n")) == "def f():\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "it has no model.vocab"),
        ({"added_tokens": ["<s>"]}, "cannot be loaded"),
        ({"pre_tokenizer": "ByteLevel"}, "cannot be loaded"),
        ({"vocab": None}, "cannot be loaded"),
    ],
)
def test_malformed_definition_is_refused(
    tokenizer_dir: Path, tmp_path: Path, change: dict, message: str
) -> None:
    altered(tokenizer_dir, tmp_path, change)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("piece_id", "message"),
    [
        (1 << 30, "different ids up to 1073741824; each needs its own id below 4194304"),
        (40, "401 pieces with 400 different ids"),
    ],
)
def test_ids_that_cannot_be_are_refused(
    tokenizer_dir: Path, tmp_path: Path, piece_id: int, message: str
) -> None:
    vocabulary = json.loads((tokenizer_dir / "tokenizer.json").read_text())["model"]["vocab"]
    altered(tokenizer_dir, tmp_path, {"vocab": {**vocabulary, "zzzz": piece_id}})
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("named", [5, ["<|pad|>"], {"id": 5}, {"content": None}])
def test_end_token_named_in_a_strange_way_is_not_taken(
    tokenizer_dir: Path, tmp_path: Path, named: object
) -> None:
    altered(tokenizer_dir, tmp_path, {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert Tokenizer.load(tmp_path).eos_id == 0
