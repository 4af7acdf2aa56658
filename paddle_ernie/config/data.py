"""`data:` where text comes from and how it becomes rows of tokens."""

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_ernie.config.base import Section, UserPath, key_fault

SourceFormat = Literal["auto", "text", "html", "jsonl", "parquet", "python_stdlib", "megatron"]


class SourceConfig(Section):
    """One source of documents: a file, a folder, or the Python installation's own library."""

    name: str | None = None
    """Label in logs and reports; null takes the last part of the path."""
    path: UserPath | None = None
    """File or folder. For `megatron`, the common prefix of the .bin and .idx files.
    Not used by `python_stdlib`."""
    glob: str | list[str] | None = None
    """Patterns below `path`, for example `**/*.rst`; null takes every known suffix."""
    exclude: list[str] = Field([])
    """Patterns below `path` that are left out."""
    format: SourceFormat = "auto"
    """`auto` goes by suffix: .txt .md .rst .py text, .html stripped, .jsonl(.gz, .zst),
    .parquet. Any other takes a folder's files of its own suffixes, or those that `glob` names."""
    column: str = "text"
    """Field of JSON lines or Parquet rows that holds the document."""
    weight: float | None = Field(None, gt=0)
    """Share of the training rows, relative to the other sources' weights; null: by size. Either all
    sources have a weight or none has."""
    max_bytes: int | None = Field(None, gt=0)
    """Use at most about this many bytes of documents (UTF-8), chosen by document hash, not by
    order."""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if (self.path is None) != (self.format == "python_stdlib"):
            raise ValueError(
                "path is needed, except for format python_stdlib, which takes none"
                if self.path is None
                else "format python_stdlib reads the running Python's library and takes no path"
            )
        return self


class TokenizerConfig(Section):
    """A tokenizer given by path, or a byte-level BPE trained on the mixture."""

    path: UserPath | None = None
    """A tokenizer.json, a folder that holds one, or a SentencePiece .model; null trains one."""
    vocab_size: int = Field(8192, ge=300, le=10_000_000)
    """Entries of a trained tokenizer, special tokens included (256 bytes + specials are the
    least)."""
    train_bytes: int = Field(16_000_000, gt=0)
    """Bytes of the mixture that a tokenizer is trained on, chosen by document hash."""


class DataConfig(Section):
    """Sources, tokenizer and packing."""

    sources: list[SourceConfig] = Field(min_length=1)
    """Where documents come from; one mixture is made of all of them."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer of a new model; a model directory brings its own."""
    max_seq_len: int = Field(512, ge=8, le=100_000_000)
    """Tokens in a packed row."""
    valid_fraction: float = Field(0.05, gt=0, lt=0.5)
    """Share of documents held out, by document hash: a document is always on the same side."""
    cache_dir: UserPath | None = None
    """Where tokenised sources are kept between runs; null means `<output_dir>/cache`."""
    num_workers: int = Field(0, ge=0, le=4096)
    """Processes that tokenise; 0 uses every core."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise key_fault("sources", "either all sources have a weight or none has")
        return self
