"""Special tokens of a tokenizer folder, as config.json and generation_config.json name them.

Reads JSON only, so that it works for any tokenizer. No Paddle.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.utils.errors import InputError

TEMPLATE_FILE = "chat_template.jinja"
TURN_ENDS = ("<|turn_end|>", "<|im_end|>", "<|eot_id|>", "<|end_of_sentence|>")
"""Tokens that end a turn of a chat: generation stops there if the chat template writes them."""

DEFAULT_EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", *TURN_ENDS[1:3])
"""Looked for when tokenizer_config.json names none."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids by role."""

    bos: int
    eos: tuple[int, ...]
    """The end of a document first, then the end of a chat's turn if the tokenizer has one."""
    pad: int


def read_special_ids(folder: Path) -> SpecialIds:
    """Roles that are not named fall back to the end of a document."""
    definition = _read(folder / "tokenizer.json")
    path = folder / "tokenizer_config.json"
    config = _read(path) if path.is_file() else {}
    ids = {token["content"]: int(token["id"]) for token in definition.get("added_tokens") or []}

    def named(role: str) -> int | None:
        value = config.get(f"{role}_token")
        return ids.get(value.get("content") if isinstance(value, dict) else value)

    eos = named("eos")
    if eos is None:
        eos = next((ids[name] for name in DEFAULT_EOS_NAMES if name in ids), None)
    if eos is None:
        raise InputError(
            f"{folder}: no token that ends a document; name one as eos_token in {path.name}"
        )
    template = _template(folder, config)
    ends = [ids[name] for name in TURN_ENDS if name in ids and name in template]
    bos, pad = named("bos"), named("pad")
    return SpecialIds(
        bos=eos if bos is None else bos,
        eos=tuple(dict.fromkeys([eos, *ends])),
        pad=eos if pad is None else pad,
    )


def _template(folder: Path, config: dict[str, Any]) -> str:
    """In tokenizer_config.json, one or several by name, or in a file of its own."""
    beside = folder / TEMPLATE_FILE
    own = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    return f"{config.get('chat_template') or ''}{own}"


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
