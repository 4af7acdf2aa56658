"""Text to token ids and back, by a tokenizer.json (Hugging Face `tokenizers`), trained or given.

Called by the corpus, by generation, by serving and by post-training. Promises:

- `decode_bytes(encode_bytes(b)) == b` for every byte string with a trained tokenizer; a given one
  may normalise text or add a space in front, but one that loses characters is refused;
- text in a document never becomes a control token: "<|endoftext|>" in a file is ordinary text.
  Only `encode(..., allow_special=True)`, meant for rendered chats, reads special tokens;
- training is deterministic in the texts.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Pipeline

from paddle_ernie.data import chat
from paddle_ernie.data.sentencepiece_model import read_sentencepiece
from paddle_ernie.data.token_table import (
    check_bytes,
    drops_leading_space,
    is_byte_level,
    token_table,
)
from paddle_ernie.utils.errors import DataError
from paddle_ernie.utils.files import write_json, write_text

SPLIT = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""GPT-4's rule with two changes: every digit stands alone (sums are easier to learn), and "'t"
after a quote is not taken for an English contraction (in code it begins a string)."""

MAX_PIECE_BYTES = 32
"""Longest trained piece: rulers of dashes and licence boilerplate must not eat the vocabulary."""

DEFAULT_EOS_NAMES = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
)
"""Looked for when a given tokenizer does not say which token ends a document."""

REPLACEMENT = "\ufffd"
"""Stands for what a vocabulary cannot represent."""

RARE_TEXT = "\ua66e\U0001f0a1"
"""A letter and a playing card that no vocabulary holds and no normaliser changes."""

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


class Tokenizer:
    """A tokenizer and its special tokens. Make one with `load` or `train`."""

    def __init__(self, definition: dict[str, Any], config: dict[str, Any], where: str) -> None:
        self._definition = definition
        self.config = config
        self._full = _pipeline(definition, where)  # first, because it checks the definition
        self.table, self._byte_ids = token_table(definition, where)
        _check_ids(self._full, definition, where)
        self._plain = _pipeline(_without_specials(definition), where)
        self._added = {token["content"]: token["id"] for token in definition["added_tokens"]}
        self._leaks = self._find_leaks()
        self._drops_space = drops_leading_space(definition)
        kind = "byte-level" if is_byte_level(definition) else "byte-fallback"
        check_bytes(self._byte_ids, self._replaces, kind, where)
        self._check_rare_text(where)
        self.eos_id = self._special("eos", where)
        self.bos_id = self._special("bos", where, default=self.eos_id)
        self.pad_id = self._special("pad", where, default=self.eos_id)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a tokenizer.json, a SentencePiece .model, or a folder that holds one of them."""
        path = _find_file(Path(path))
        if path.suffix == ".model":
            return cls(*read_sentencepiece(path), str(path))
        definition = _read_json(path)
        model = definition.get("model")
        if not isinstance(model, dict) or "vocab" not in model:
            raise DataError(f"{path}: not a tokenizer.json: it has no model.vocab")
        beside = path.with_name(CONFIG_FILE)
        config = _read_json(beside) if beside.exists() else {}
        return cls({**definition, "added_tokens": definition.get("added_tokens") or []}, config,
                   str(path))  # fmt: skip

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """A byte-level BPE of at most `vocab_size` entries, special tokens and bytes included."""
        pipeline = Pipeline(models.BPE())
        pipeline.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        pipeline.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(chat.SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            max_token_length=MAX_PIECE_BYTES,
            show_progress=False,
        )
        pipeline.train_from_iterator(texts, trainer)
        definition = json.loads(pipeline.to_str())
        for token in definition["added_tokens"]:
            token["special"] = token["content"] not in chat.TAG_TOKENS
        return cls(definition, _trained_config(), "just trained")

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers` can load."""
        text = json.dumps(self._definition, ensure_ascii=False, indent=1)
        write_text(directory / TOKENIZER_FILE, text)
        write_json(directory / CONFIG_FILE, self.config)

    @staticmethod
    def files(path: Path | str) -> list[Path]:
        """The files that `load` would read."""
        found = _find_file(Path(path))
        beside = found.with_name(CONFIG_FILE)
        return [found, beside] if found.suffix != ".model" and beside.exists() else [found]

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return len(self.table)

    @property
    def dtype(self) -> type[np.uint16] | type[np.uint32]:
        """The smallest unsigned type that holds every id."""
        return np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    @property
    def token_bytes(self) -> np.ndarray:
        """int64 [V]: number of bytes of text each id stands for; 0 for control tokens."""
        return np.array([len(piece) for piece in self.table], np.int64)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides which ids a text becomes."""
        decisive = json.dumps([self._definition, self.eos_id], sort_keys=True)
        return hashlib.sha256(decisive.encode()).hexdigest()

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of special tokens, tags and what else was added to the vocabulary, by name."""
        return MappingProxyType(self._added)

    def token_id(self, name: str) -> int:
        """The id of a special token, such as `<|turn_end|>`."""
        if name not in self._added:
            raise DataError(
                f"this tokenizer has no special token {name!r}; it has "
                f"{', '.join(sorted(self._added)) or 'none'}"
            )
        return self._added[name]

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of a text, nothing added. Lone surrogates, which no file can hold, become U+FFFD."""
        text = without_surrogates(text)
        if allow_special:
            return self._full.encode(text, add_special_tokens=False).ids
        parts = self._leaks.split(text) if self._leaks else [text]
        return [i for part in parts for i in self._plain.encode(part, add_special_tokens=False).ids]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of several documents, each an array of `dtype`: `encode`, but faster."""
        if self._leaks:
            return [np.array(self.encode(text), self.dtype) for text in texts]
        clean = [without_surrogates(text) for text in texts]
        encodings = self._plain.encode_batch_fast(clean, add_special_tokens=False)
        return [np.array(encoding.ids, self.dtype) for encoding in encodings]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids of any bytes: valid UTF-8 as text, every other byte by its token, or as U+FFFD."""
        ids: list[int] = []
        for part in re.split("([\udc80-\udcff]+)", data.decode("utf-8", "surrogateescape")):
            if part and "\udc80" <= part[0] <= "\udcff":
                for character in part:
                    index = self._byte_ids[ord(character) - 0xDC00]
                    ids += self.encode(REPLACEMENT) if index is None else [index]
            elif part:
                ids += self.encode(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._drops_space else text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of ids; control tokens stand for none."""
        return b"".join([self.table[i] for i in ids])

    def streamer(self) -> "Streamer":
        """Decodes one id at a time."""
        return Streamer(self.table)

    def _special(self, role: str, where: str, default: int | None = None) -> int:
        named = self.config.get(f"{role}_token")
        name = named.get("content") if isinstance(named, dict) else named
        if isinstance(name, str) and name in self._added:
            return self._added[name]
        if default is not None:
            return default
        for candidate in DEFAULT_EOS_NAMES:
            if candidate in self._added:
                return self._added[candidate]
        raise DataError(
            f"tokenizer {where}: no token that ends a document; name one as eos_token in "
            f"{CONFIG_FILE} beside it (special tokens: {', '.join(sorted(self._added)) or 'none'})"
        )

    def _replaces(self, character: str) -> bool:
        return self.decode(self.encode(character)) == REPLACEMENT

    def _check_rare_text(self, where: str) -> None:
        """All byte tokens may be there and yet unused, as with byte_fallback switched off."""
        if (found := self.decode(self.encode(RARE_TEXT))) != RARE_TEXT:
            raise DataError(
                f"tokenizer {where}: loses text: {RARE_TEXT!r} comes back as {found!r}; its "
                "pre-tokenizer must be ByteLevel, or its model must have byte_fallback"
            )

    def _find_leaks(self) -> re.Pattern[str] | None:
        """Special names that plain encoding still turns into their id; texts are cut inside them.

        Happens when the model part itself may produce the piece, as in a Unigram vocabulary.
        """
        control = _control_ids(self._definition)
        leaks = []
        for name, index in self._added.items():
            if index not in control or len(name) < 2:
                continue
            if index in self._plain.encode(name, add_special_tokens=False).ids:
                leaks.append(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})")
        return re.compile("|".join(leaks)) if leaks else None


class Streamer:
    """Turns ids into text as they come, holding back a character until its last byte is there."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that became certain with this id; often empty in the middle of a character."""
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)


def without_surrogates(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _pipeline(definition: dict[str, Any], where: str) -> Pipeline:
    """The `tokenizers` object of a definition, without what it would add, cut or pad."""
    bare = {**definition, "post_processor": None, "truncation": None, "padding": None}
    try:
        return Pipeline.from_str(json.dumps(bare))
    except Exception as error:  # the library raises bare Exception for any bad file
        raise DataError(f"tokenizer {where}: cannot be loaded: {error}") from error


def _check_ids(pipeline: Pipeline, definition: dict[str, Any], where: str) -> None:
    for token in definition["added_tokens"]:
        if (found := pipeline.token_to_id(token["content"])) != token["id"]:
            raise DataError(
                f"tokenizer {where}: added token {token['content']!r} is listed with id "
                f"{token['id']} but loads with id {found}; the ids of added tokens must go on "
                "where the vocabulary ends, without gaps"
            )


def _without_specials(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition without control tokens and tags; the ids of all others stay."""
    control = _control_ids(definition)
    kept = [token for token in definition["added_tokens"] if token["id"] not in control]
    model = dict(definition["model"])
    if isinstance(model["vocab"], dict):
        # Named in the vocabulary, a kept token keeps its id though those before it are gone. No
        # merge leads to a name, so text cannot become one.
        names = {token["content"]: token["id"] for token in definition["added_tokens"]}
        model["vocab"] = {**model["vocab"], **names}
    elif model["type"] == "Unigram":
        # A piece with a space is never found, since the normaliser has replaced all spaces.
        model["vocab"] = [
            [f" {piece}" if index in control else piece, score]
            for index, (piece, score) in enumerate(model["vocab"])
        ]
    return {**definition, "model": model, "added_tokens": kept}


def _control_ids(definition: dict[str, Any]) -> set[int]:
    """Ids of added tokens that documents must not produce: special ones, and all that are markup.

    The rest, such as GPT-NeoX's runs of spaces, are ordinary vocabulary.
    """
    return {
        token["id"]
        for token in definition["added_tokens"]
        if token["special"] or set("<>[]|{}") & set(token["content"])
    }


def _trained_config() -> dict[str, Any]:
    control = [name for name in chat.SPECIAL_TOKENS if name not in chat.TAG_TOKENS]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": chat.EOS,
        "bos_token": chat.BOS,
        "pad_token": chat.PAD,
        "mask_token": chat.MASK,
        "additional_special_tokens": control[4:],
        "clean_up_tokenization_spaces": False,
        "chat_template": chat.CHAT_TEMPLATE,
    }


def _find_file(path: Path) -> Path:
    try:
        if not path.exists():
            raise DataError(f"tokenizer {path}: no such file or folder")
        if path.is_file():
            return path
        names = sorted(file.name for file in path.iterdir())
    except OSError as error:
        raise DataError(f"tokenizer {path}: cannot be read: {error.strerror}") from error
    wanted = [TOKENIZER_FILE, *(name for name in names if name.endswith(".model"))]
    found = [path / name for name in wanted if name in names]
    if not found:
        raise DataError(f"tokenizer {path}: the folder holds neither {TOKENIZER_FILE} nor a .model")
    return found[0]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
