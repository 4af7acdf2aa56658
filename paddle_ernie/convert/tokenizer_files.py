"""Tokenizer files of an imported model, from GGUF metadata or a Hugging Face folder. No Paddle.

A GGUF file holds the vocabulary, the merges, and the name of the rule that cuts text before
merging; tokenizer.json is written out from these. A vocabulary may lack bytes that its training
text never held (SmolLM2's has no U+0004), and would drop their characters without a word: the
normaliser written here turns these characters into U+FFFD.

In a Hugging Face folder the chat template and the special tokens may lie in files of their own;
they join tokenizer_config.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import write_json, write_text
from paddle_ernie.utils.utf8 import byte_alphabet, led_by

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2
"""Kinds of tokens in tokenizer.ggml.token_type that are not made by merging."""

DIGITS_ALONE = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
"""Rules that cut out every digit and then split like GPT-2."""

AS_GPT2 = frozenset({"gpt-2", "gpt2", "olmo", "jais", "mpt"})

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
AS_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})

SPECIAL_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Role in tokenizer_config.json -> its name in the metadata."""


def gguf_tokenizer_fault(metadata: Mapping[str, Any]) -> str | None:
    """Why no tokenizer.json can be made of the metadata; None if it can."""
    model, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model is None:
        return "it holds no tokenizer"
    if model != "gpt2":
        return f"its tokenizer is of type {model!r}, only 'gpt2' (byte-level BPE) is built"
    if _split_steps(rule) is None:
        known = ", ".join(sorted(DIGITS_ALONE | AS_GPT2 | AS_LLAMA3))
        return f"its tokenizer cuts text by the rule {rule!r}; known are {known}"
    return None


def write_gguf_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; `gguf_tokenizer_fault` must be None."""
    tokens, kinds = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        "normalizer": _replacing(tokens),
        "pre_tokenizer": _pre_tokenizer(metadata["tokenizer.ggml.pre"]),
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # Llama 3 takes a word that is in the vocabulary whole, merges or not.
            "ignore_merges": metadata["tokenizer.ggml.pre"] in AS_LLAMA3,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
    write_text(folder / TOKENIZER_FILE, json.dumps(definition, ensure_ascii=False, indent=1))
    write_json(folder / CONFIG_FILE, _config(metadata, tokens))


def complete_config(source: Path, folder: Path) -> None:
    """Give the tokenizer_config.json in `folder` all that a Hugging Face folder `source` says."""
    config = {**_read(folder / CONFIG_FILE), **_read(source / CONFIG_FILE)}
    for role, token in _read(source / "special_tokens_map.json").items():
        config.setdefault(role, token)
    template = source / "chat_template.jinja"
    if template.is_file():
        config["chat_template"] = template.read_text(encoding="utf-8")
    config["chat_template"] = _one_template(config.get("chat_template"))
    if config["chat_template"] is None:
        del config["chat_template"]
    write_json(folder / CONFIG_FILE, config)


def _added_tokens(tokens: list[str], kinds: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED, UNKNOWN)
    ]


def _replacing(tokens: list[str]) -> dict[str, Any] | None:
    """A normaliser that puts U+FFFD in place of characters with bytes that have no token."""
    vocabulary, ranges = set(tokens), []
    for byte, name in enumerate(byte_alphabet()):
        if name not in vocabulary and (points := led_by(byte)):
            ranges.append(f"\\x{{{points[0]:X}}}-\\x{{{points[-1]:X}}}")
    if not ranges:
        return None
    return {"type": "Replace", "pattern": {"Regex": f"[{''.join(ranges)}]"}, "content": "\ufffd"}


def _pre_tokenizer(rule: str) -> dict[str, Any]:
    steps = _split_steps(rule)
    assert steps is not None, f"no rule {rule!r}"
    return {"type": "Sequence", "pretokenizers": steps}


def _split_steps(rule: object) -> list[dict[str, Any]] | None:
    if rule in DIGITS_ALONE:
        return [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)]
    if rule in AS_GPT2:
        return [_byte_level(use_regex=True)]
    if rule in AS_LLAMA3:
        split = {
            "type": "Split",
            "pattern": {"Regex": LLAMA3_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        }
        return [split, _byte_level(use_regex=False)]
    return None


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    """`use_regex`: also split as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _config(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    }
    for role, name in SPECIAL_ROLES.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if index is not None and index < len(tokens):
            config[f"{role}_token"] = tokens[index]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _one_template(template: object) -> object:
    """Some folders list several by name; the default one is for chats."""
    if not isinstance(template, list):
        return template
    named = {entry["name"]: entry["template"] for entry in template}
    return named.get("default")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
