"""What a configuration reads must be there: looked at before a run makes its folder.

The loader calls it for runs, not for dry runs, which may be made before the text exists. Whether
the files can be used is checked where they are read.
"""

from collections.abc import Iterator
from pathlib import Path

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.config.faults import Fault, nearest
from paddle_ernie.config.stages import PipelineConfig, StageConfig

MODEL_FILE = "config.json"  # what every model directory and every checkpoint has
MEGATRON_SUFFIXES = (".bin", ".idx")


def input_faults(config: StageConfig) -> Iterator[Fault]:
    """One fault for each file or folder that is named and does not exist."""
    for index, source in enumerate(config.data.sources):
        for path in _files(source):
            if not path.exists():
                yield Fault(("data", "sources", index, "path"), _missing(path, "file or folder"))
    tokenizer = config.data.tokenizer.path
    if tokenizer is not None and not tokenizer.exists():
        yield Fault(("data", "tokenizer", "path"), _missing(tokenizer, "file or folder"))
    if isinstance(config, PipelineConfig):
        return
    start = config.init_from
    if start is not None and not (start / MODEL_FILE).is_file():
        found = (
            f"expected a model directory, and it holds no {MODEL_FILE}"
            if start.is_dir()
            else _missing(start, "model directory")
        )
        yield Fault(("init_from",), found)


def _files(source: SourceConfig) -> list[Path]:
    """What must exist of a source: its path, or the pair of files behind a Megatron prefix."""
    if source.path is None:
        return []
    if source.format != "megatron":
        return [source.path]
    prefix = source.path
    if prefix.suffix in MEGATRON_SUFFIXES:
        prefix = prefix.with_suffix("")
    return [Path(f"{prefix}{suffix}") for suffix in MEGATRON_SUFFIXES]


def _missing(path: Path, what: str) -> str:
    if path.exists():
        return f"expected a {what}, and {path} is a file"
    looked = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
    return f"no such {what}: {path}{looked}{_similar(path)}"


def _similar(path: Path) -> str:
    """The entry of the same folder that may be meant."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"; did you mean {path.parent / near}?" if near else ""
