"""The tokens of one source on disk, memory-mapped: written once, checked at every opening.

A store is a folder

    tokens.bin    ids of all documents, each ended by the end token; training documents first
    offsets.bin   int64 [documents + 1]: where each document begins
    store.json    dtype and counts
    manifest.json size and SHA-256 of the others

It appears whole or not at all. `open_store` reads every byte once (about 1 GB/s) and raises
CheckpointError for a damaged one; the corpus then builds it again.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.manifest import verify_manifest, write_manifest

TOKENS, OFFSETS, META = "tokens.bin", "offsets.bin", "store.json"
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one source's training or validation documents. N tokens, D documents."""

    name: str
    """The source."""
    tokens: np.ndarray
    """uint16 or uint32 [N], memory-mapped."""
    offsets: np.ndarray
    """int64 [D + 1]: document d is tokens[offsets[d]:offsets[d + 1]]."""

    @property
    def num_tokens(self) -> int:
        """End tokens included."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Documents of this side of the split."""
        return len(self.offsets) - 1

    def document(self, index: int) -> np.ndarray:
        """The ids of one document, its end token included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class StoreMeta:
    """store.json."""

    dtype: str
    num_tokens: int
    num_documents: int
    num_train_documents: int


def write_store(
    directory: Path, parts: list[Path], num_train_documents: int, dtype: type[np.generic]
) -> None:
    """Join the parts of `encode` into a store in `directory`, which the caller makes atomic."""
    lengths = np.concatenate([np.fromfile(f"{part}.lengths", np.int64) for part in parts])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    (directory / OFFSETS).write_bytes(offsets.tobytes())  # `tofile` does not tell of a full disk
    with (directory / TOKENS).open("wb") as joined:
        for part in parts:
            with Path(f"{part}.tokens").open("rb") as stream:
                shutil.copyfileobj(stream, joined, COPY_BYTES)
    meta = StoreMeta(np.dtype(dtype).name, int(offsets[-1]), len(lengths), num_train_documents)
    write_json(directory / META, asdict(meta))
    write_manifest(directory)


def open_store(directory: Path, name: str) -> tuple[TokenStore, TokenStore]:
    """Training and validation side of a whole store; CheckpointError says what is wrong with it."""
    verify_manifest(directory)
    meta = StoreMeta(**json.loads((directory / META).read_text()))
    tokens = np.memmap(directory / TOKENS, meta.dtype, mode="r", shape=(meta.num_tokens,))
    offsets = np.fromfile(directory / OFFSETS, np.int64)
    cut = offsets[meta.num_train_documents]
    train = TokenStore(name, tokens[:cut], offsets[: meta.num_train_documents + 1])
    valid = TokenStore(name, tokens[cut:], offsets[meta.num_train_documents :] - cut)
    return train, valid
