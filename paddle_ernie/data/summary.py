"""What became of each source, for the run's first table and its report."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SplitCounts:
    """One side of the split."""

    documents: int
    bytes: int
    """UTF-8 bytes of text."""
    tokens: int
    """End tokens included."""


@dataclass(frozen=True)
class SourceSummary:
    """One source after preparation."""

    name: str
    location: str
    """Path of the file or folder."""
    files: int
    """Files that the documents come from."""
    duplicates: int
    """Documents dropped because their content had been seen, here or in an earlier source."""
    empty: int
    """Null rows and documents of white space only, dropped."""
    over_cap: int
    """Documents left out by `max_bytes`."""
    skipped: tuple[str, ...]
    """Files of a folder that are not text: path and reason."""
    train: SplitCounts
    valid: SplitCounts
    file_list: Path
    """Text file with the paths of these files, one a line."""

    @property
    def documents(self) -> int:
        """Both sides together."""
        return self.train.documents + self.valid.documents

    @property
    def bytes(self) -> int:
        """Both sides together."""
        return self.train.bytes + self.valid.bytes

    @property
    def tokens(self) -> int:
        """Both sides together."""
        return self.train.tokens + self.valid.tokens

    def describe(self) -> str:
        """One line for the log."""
        return (
            f"source {self.name!r}: {self.documents:,} documents of {self.bytes / 1e6:,.1f} MB, "
            f"{self.tokens:,} tokens, from {self.files:,} files (listed in {self.file_list})"
        )

    def to_json(self) -> dict[str, Any]:
        """For a JSON file."""
        return {**asdict(self), "file_list": str(self.file_list)}

    @classmethod
    def from_json(cls, value: dict[str, Any], folder: Path) -> "SourceSummary":
        """The inverse of `to_json`, though `folder`, which may have moved, holds `file_list`."""
        fields = {
            **value,
            "skipped": tuple(value["skipped"]),
            "train": SplitCounts(**value["train"]),
            "valid": SplitCounts(**value["valid"]),
            "file_list": folder / Path(value["file_list"]).name,
        }
        return cls(**fields)
