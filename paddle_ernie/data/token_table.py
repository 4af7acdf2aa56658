"""Which bytes each token id stands for: the table behind decoding, streaming and bits per byte.

Two families of tokenizers can represent every byte string, and only these are accepted:

    byte level      every piece is written in an alphabet of 256 printable characters, one per byte
    byte fallback   pieces are text with U+2581 for a space, and <0x00> .. <0xFF> stand for bytes

A vocabulary that lacks some bytes passes if its normaliser turns every character that needs them
into U+FFFD, so that nothing vanishes from a text unseen.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from paddle_ernie.utils.errors import DataError
from paddle_ernie.utils.utf8 import byte_alphabet, continues, led_by

SPACE_MARK = "\u2581"
MAX_ENTRIES = 1 << 22
"""Far beyond any vocabulary; an id above it would ask for gigabytes."""

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def is_byte_level(definition: dict[str, Any]) -> bool:
    """Whether the pipeline of a tokenizer.json turns text into the byte alphabet."""
    return any(
        step.get("type") == "ByteLevel"
        for part in ("pre_tokenizer", "decoder")
        for step in _steps(definition.get(part))
    )


def drops_leading_space(definition: dict[str, Any]) -> bool:
    """Whether encoding puts a space before a text that decoding must take away again."""
    if any(
        step.get("type") == "ByteLevel" and step.get("add_prefix_space", True)
        for step in _steps(definition.get("pre_tokenizer"))
    ):
        return True
    return any(
        (step.get("type") == "Strip" and step.get("start", 0) > 0)
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in _steps(definition.get("decoder"))
    )


def token_table(definition: dict[str, Any], where: str) -> tuple[list[bytes], list[int | None]]:
    """Bytes of each id (none for control tokens), and the id of each single byte, if there is one.

    Raises DataError if two pieces share an id or one is absurdly large.
    """
    vocabulary = model_vocabulary(definition)
    added = definition.get("added_tokens") or []
    size = 1 + max([*vocabulary.values(), *(token["id"] for token in added)])
    if size > MAX_ENTRIES or len(set(vocabulary.values())) < len(vocabulary):
        raise DataError(
            f"tokenizer {where}: {len(vocabulary)} pieces with {len(set(vocabulary.values()))} "
            f"different ids up to {size - 1}; each needs its own id below {MAX_ENTRIES}"
        )
    table = [b""] * size
    read = _byte_level_piece if is_byte_level(definition) else _fallback_piece
    characters = {character: byte for byte, character in enumerate(byte_alphabet())}
    for piece, index in vocabulary.items():
        table[index] = read(piece, characters)
    for token in added:
        table[token["id"]] = b"" if token["special"] else token["content"].encode()
    return table, [vocabulary.get(name) for name in _byte_names(definition)]


def check_bytes(
    byte_ids: list[int | None],
    replaced: Callable[[str], bool],
    kind: str,
    where: str,
) -> None:
    """Raise DataError if text could vanish because a byte has no token.

    `replaced` says whether a character is turned into U+FFFD.
    """
    missing = [byte for byte, index in enumerate(byte_ids) if index is None]
    needed = [
        byte
        for byte in missing
        if continues(byte)
        or ((points := led_by(byte)) and not all(replaced(chr(points[i])) for i in (0, -1)))
    ]
    if needed:
        raise DataError(
            f"tokenizer {where}: {len(missing)} of 256 bytes have no token (first: "
            f"0x{missing[0]:02X}, {kind} pieces expected), so some text could not be represented; "
            "use a byte-level BPE or a SentencePiece model trained with byte_fallback"
        )


def model_vocabulary(definition: dict[str, Any]) -> dict[str, int]:
    """Piece -> id of the model part (a dict for BPE, a list of [piece, score] for Unigram)."""
    vocabulary = definition["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece: index for index, (piece, _) in enumerate(vocabulary)}


def _byte_names(definition: dict[str, Any]) -> list[str]:
    if is_byte_level(definition):
        return byte_alphabet()
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _byte_level_piece(piece: str, characters: dict[str, int]) -> bytes:
    if all(character in characters for character in piece):
        return bytes(characters[character] for character in piece)
    return piece.encode()  # an added token that also stands in the model's vocabulary


def _fallback_piece(piece: str, _: dict[str, int]) -> bytes:
    if match := BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode()


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a pipeline part, sequences flattened."""
    if part is None:
        return
    yield part
    for key in ("pretokenizers", "decoders", "normalizers"):
        for step in part.get(key, []):
            yield from _steps(step)
