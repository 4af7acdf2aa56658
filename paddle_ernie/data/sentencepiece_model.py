"""A SentencePiece .model file rewritten as the tokenizer.json it is equivalent to.

Called by `Tokenizer.load`. The file is a protocol buffer with three parts that matter: the pieces
(text, score, type), the trainer's settings (BPE or Unigram, special ids) and the normaliser's. It
is read directly, so neither the sentencepiece nor the protobuf package is needed; the ids are those
of the sentencepiece library, which the tests use as the reference.
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.data.token_table import SPACE_MARK
from paddle_ernie.utils.errors import DataError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2

BEFORE_BYTE_NAME = {
    "type": "Split",
    "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"},
    "behavior": "Isolated",
    "invert": False,
}
"""Cuts the text "<0x41>" so that a Unigram search cannot take it for the byte piece named so."""


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a .model file that decide its ids."""

    pieces: list[Piece]
    model_type: int
    byte_fallback: bool
    charsmap: bytes
    """Compiled normalisation rules (empty: identity)."""
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    special_ids: dict[str, int]
    """unk, bos, eos and pad -> id; absent ones are negative."""


def read_sentencepiece(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of tokenizer.json and tokenizer_config.json for a .model file."""
    try:
        model = _parse(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise DataError(f"{path}: not a SentencePiece model ({error})") from error
    if model.model_type not in (UNIGRAM, BPE):
        raise DataError(f"{path}: a word or character model; only BPE and Unigram models are read")
    return _definition(model), _config(model)


def _definition(model: SentencePieceModel) -> dict[str, Any]:
    added = [
        {
            "id": index,
            "content": piece.text,
            "special": piece.kind in (CONTROL, UNKNOWN),
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for index, piece in enumerate(model.pieces)
        if piece.kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]
    decoder: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix:
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": BEFORE_BYTE_NAME if model.model_type == UNIGRAM else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoder},
        "model": _unigram(model) if model.model_type == UNIGRAM else _bpe(model),
    }


def _config(model: SentencePieceModel) -> dict[str, Any]:
    names = {
        f"{role}_token": model.pieces[index].text
        for role, index in model.special_ids.items()
        if 0 <= index < len(model.pieces)
    }
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names}


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE_MARK})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK})
    return steps


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": model.special_ids["unk"],
        "vocab": [[piece.text, piece.score] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.pieces[model.special_ids["unk"]].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {piece.text: index for index, piece in enumerate(model.pieces)},
        "merges": _merges(model),
    }


def _merges(model: SentencePieceModel) -> list[list[str]]:
    """Every way to join two pieces into a third, best score of the result first.

    SentencePiece merges the adjacent pair whose union scores highest, which is what ranked merges
    do when all pairs with the same union stand together at that union's rank.
    """
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    merges: list[list[str]] = []
    for text in sorted(scores, key=lambda text: -scores[text]):
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        merges += [[a, b] for a, b in halves if a in scores and b in scores]
    return merges


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            fields = dict(_fields(value))
            score = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))[0]
            pieces.append(Piece(fields[1].decode(), score, fields.get(3, NORMAL)))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("it holds no pieces")
    defaults = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}
    return SentencePieceModel(
        pieces=pieces,
        model_type=trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        special_ids={
            role: _signed(trainer.get(number, default))
            for role, (number, default) in defaults.items()
        },
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values of a protocol buffer message: int for varints, else bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"it ends within a field at byte {at}")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _signed(value: int) -> int:
    """A negative id (absent token) is stored as a 64-bit two's complement varint."""
    return value - (1 << 64) if value >= 1 << 63 else value
