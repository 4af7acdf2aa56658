"""What the stages of a pipeline recorded, read back as typed records; used by the report.

tokenizer  summary.json   sources, vocabulary, baselines in bits per byte
pretrain   summary.json   parameters, speed, memory, validation loss before and after
           metrics.jsonl  everything over the steps
extract    summary.json   what was cut, parameters before and after
samples    samples.json   the texts
each       stage.json     seconds
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from paddle_ernie.config.stages import PretrainStep
from paddle_ernie.monitor.reader import Metrics, read_jsonl
from paddle_ernie.utils.errors import CheckpointError

if TYPE_CHECKING:
    from paddle_ernie.post.pipeline import StageFolder

FULL = "full"
"""Name of the whole model among a stage's evaluations."""
T = TypeVar("T")


class Recorded(BaseModel):
    """Base: a stage may record more than is read here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Parameters(Recorded):
    """Counts; `active` is what one token passes."""

    total: int
    active: int
    total_without_embedding: int
    active_without_embedding: int


class Evaluation(Recorded):
    """Validation result of one model or subnet."""

    loss: float
    """Nats a token."""
    bpb: float
    """Bits a byte."""
    ppl: float
    params: Parameters | None = None
    """Size of the model or subnet."""


class PretrainSummary(Recorded):
    """`summary.json` of a pretrain stage."""

    tokens: int
    steps: int
    tokens_per_s: float
    eval: dict[str, Evaluation]
    """After the last step."""
    peak_memory_bytes: float
    predicted_memory_bytes: float

    @property
    def parameters(self) -> Parameters | None:
        """Of the full model."""
        return self.eval[FULL].params


class Ratios(Recorded):
    """Shares of the parameters without embeddings that were kept."""

    total: float
    active: float


class ExtractSummary(Recorded):
    """`summary.json` of an extract stage."""

    ratios: Ratios
    params_before: Parameters
    params_after: Parameters
    subnet: dict[str, Any] = {}
    eval: dict[str, Evaluation] = {}
    """The cut model before any further training; empty when there was no text to measure on."""


class Baselines(Recorded):
    """Bits per byte of simple models on the validation text."""

    bigram: float
    xz: float


class SplitCounts(Recorded):
    """One side of the split of a source."""

    documents: int
    bytes: int
    tokens: int


class Source(Recorded):
    """One source of text after preparation."""

    name: str
    files: int
    duplicates: int
    train: SplitCounts
    valid: SplitCounts


class TokenizerSummary(Recorded):
    """`summary.json` of a tokenizer stage."""

    vocab_size: int
    bytes_per_token: float
    bpb: Baselines
    sources: tuple[Source, ...] = ()


class Sample(Recorded):
    """One text of a samples stage."""

    model: str
    prompt: str
    text: str


@dataclass(frozen=True)
class PretrainRecord:
    """A training stage: its step, summary and metrics."""

    name: str
    step: PretrainStep
    summary: PretrainSummary
    metrics: Metrics

    @property
    def flop_utilisation(self) -> float | None:
        """Median of what was logged."""
        series = self.metrics.scalars.get("throughput/flop_utilisation")
        return None if series is None else float(np.nanmedian(series.values))


@dataclass(frozen=True)
class RunRecord:
    """A whole run, by role."""

    seconds: dict[str, float]
    """Stage name -> wall time of its last start; stages that are not done are left out."""
    tokenizer: TokenizerSummary | None
    trained: tuple[PretrainRecord, ...]
    """Training stages in order."""
    full: PretrainRecord | None
    """The first one trained from scratch."""
    extract: ExtractSummary | None
    """The last extraction."""
    healed: PretrainRecord | None
    """The training stage that starts from that extraction."""
    samples: tuple[Sample, ...]


def read_run(folders: Sequence["StageFolder"]) -> RunRecord:
    """Read what every stage in `folders` recorded; CheckpointError names a file that is wrong."""
    by_kind: dict[str, list[StageFolder]] = {}
    for folder in folders:
        by_kind.setdefault(folder.step.kind, []).append(folder)
    trained = tuple(_pretrain(folder) for folder in by_kind.get("pretrain", []))
    tokenizer, extract = by_kind.get("tokenizer", []), by_kind.get("extract", [])
    cut = extract[-1].step.name if extract else None
    adapter = TypeAdapter(tuple[Sample, ...])
    texts = [_read(folder.path / "samples.json", adapter) for folder in by_kind.get("samples", [])]
    return RunRecord(
        seconds=_seconds(folders),
        tokenizer=_summary(tokenizer[-1], TokenizerSummary) if tokenizer else None,
        trained=trained,
        full=next((record for record in trained if record.step.init_from is None), None),
        extract=_summary(extract[-1], ExtractSummary) if extract else None,
        healed=next((record for record in trained if cut and record.step.init_from == cut), None),
        samples=tuple(sample for group in texts for sample in group),
    )


def _pretrain(folder: "StageFolder") -> PretrainRecord:
    assert isinstance(folder.step, PretrainStep)
    summary = _summary(folder, PretrainSummary)
    if FULL not in summary.eval:
        raise CheckpointError(
            f"{folder.path / 'summary.json'}: eval has {sorted(summary.eval)}, expected {FULL!r} "
            f"among them; delete {folder.path} and run the pipeline again"
        )
    metrics = read_jsonl(folder.path / "metrics.jsonl")
    return PretrainRecord(folder.step.name, folder.step, summary, metrics)


def _summary(folder: "StageFolder", kind: type[T]) -> T:
    return _read(folder.path / "summary.json", TypeAdapter(kind))


def _read(path: Path, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: the stage left no such file, expected its record; "
            f"delete {path.parent} and run the pipeline again"
        ) from error
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise CheckpointError(
            f"{path}: cannot be read as a stage's record ({faults}); "
            f"delete {path.parent} and run the pipeline again"
        ) from error


def _seconds(folders: Sequence["StageFolder"]) -> dict[str, float]:
    states = {folder.step.name: folder.recorded() for folder in folders}
    return {
        name: float(state["seconds"])
        for name, state in states.items()
        if state.get("done") and math.isfinite(state.get("seconds", math.nan))
    }
