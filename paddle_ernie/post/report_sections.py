"""Sections of the pipeline's report that are tables and text: sizes, samples, time, sources.

Called by `report.py`, one function a section; each puts its figures into report.json too.
"""

import re

from paddle_ernie.monitor import tables
from paddle_ernie.monitor.report import Report
from paddle_ernie.monitor.tables import Cell, Column, Table
from paddle_ernie.post.recorded import Parameters, PretrainRecord, RunRecord, Source

SAMPLE_CHARACTERS = 600  # longer texts are cut: a report is read, not studied


def add_parameters(report: Report, run: RunRecord) -> None:
    """Full and extracted model, with and without embeddings, and the share that was kept."""
    full = run.full.summary.parameters if run.full else None
    cut = run.extract.params_after if run.extract else None
    models = [("full model", "params", full), ("extracted model", "params.extracted", cut)]
    rows: list[tuple[Cell, ...]] = []
    for label, prefix, params in models:
        if params is not None:
            report.add_numbers(prefix, params.model_dump())
            rows.append((label, *_counts(params)))
    if run.extract is not None:
        before, after = _counts(run.extract.params_before), _counts(run.extract.params_after)
        kept = [tables.percent(a / b) for a, b in zip(after, before, strict=True)]
        rows.append(("kept", *kept))
        report.add_numbers("ratio", run.extract.ratios.model_dump())
    if not rows:
        return
    names = ("total", "total without embeddings", "active", "active without embeddings")
    columns = (Column("", align="left"), *(Column(name, show=tables.count) for name in names))
    report.heading("How large are they?")
    report.table(
        Table("Parameters", columns, rows),
        "Active parameters are those that one token passes when text is generated. An extraction "
        "is chosen by the counts without embeddings: both models share the vocabulary.",
    )


def _counts(params: Parameters) -> tuple[int, int, int, int]:
    return (
        params.total,
        params.total_without_embedding,
        params.active,
        params.active_without_embedding,
    )


def add_samples(report: Report, run: RunRecord) -> None:
    """Each prompt with what every model made of it."""
    if not run.samples:
        return
    report.heading("What do they write?")
    report.text("The same prompts continued by each model, with the same seed.")
    for prompt in dict.fromkeys(sample.prompt for sample in run.samples):
        for sample in run.samples:
            if sample.prompt == prompt:
                report.text(f"**{sample.model}**")
                report.code(_cut(sample.prompt + sample.text))


def _cut(text: str) -> str:
    return text if len(text) <= SAMPLE_CHARACTERS else text[:SAMPLE_CHARACTERS] + " [...]"


def add_stages(report: Report, run: RunRecord) -> Table:
    """Time, speed and memory of every finished stage; returns the table."""
    trained = {record.name: record for record in run.trained}
    columns = (
        Column("stage", align="left"),
        Column("time", show=tables.duration),
        Column("steps"),
        Column("tokens", show=tables.count),
        Column("tokens/s", show=tables.count),
        Column("FLOP utilisation", show=tables.percent),
        Column("peak memory", show=tables.size),
        Column("predicted", show=tables.size),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, seconds in run.seconds.items():
        report.number(f"time.{key(name)}_s", seconds)
        figures = _stage_figures(trained[name]) if name in trained else {}
        for pattern, value in figures.items():
            if value is not None:
                report.number(pattern.format(key(name)), value)
        values = figures.values() if figures else [None] * (len(columns) - 2)
        rows.append((name, seconds, *values))
    table = Table("Stages", columns, rows)
    report.heading("How long did it take?")
    report.table(
        table,
        "Time is the wall time of a stage, start-up and evaluations included (of its last start if "
        "it was resumed); FLOP utilisation is useful arithmetic over this machine's measured peak; "
        "predicted memory is what `--dry-run` said.",
    )
    return table


def _stage_figures(record: PretrainRecord) -> dict[str, float | None]:
    """Name in report.json, with {} for the stage -> value, in the order of the table's columns."""
    summary = record.summary
    return {
        "steps.{}": summary.steps,
        "tokens.{}": summary.tokens,
        "throughput.{}_tokens_per_s": summary.tokens_per_s,
        "flop_utilisation.{}": record.flop_utilisation,
        "memory.{}_peak_bytes": summary.peak_memory_bytes,
        "memory.{}_predicted_bytes": summary.predicted_memory_bytes,
    }


def add_text(report: Report, run: RunRecord) -> None:
    """Tokenizer and sources."""
    if run.tokenizer is None:
        return
    text = run.tokenizer
    values = {"vocab_size": text.vocab_size, "bytes_per_token": text.bytes_per_token}
    report.add_numbers("tokenizer", values)
    report.heading("What was it trained on?")
    report.text(
        f"Byte-level BPE with {text.vocab_size:,} entries; a token stands for "
        f"{text.bytes_per_token:.2f} bytes of validation text on average."
    )
    if text.sources:
        report.table(
            _source_table(text.sources),
            "One line a source; exact duplicates were removed, and validation documents are never "
            "trained on.",
        )


def _source_table(sources: tuple[Source, ...]) -> Table:
    columns = (
        Column("source", align="left"),
        Column("files"),
        Column("duplicates"),
        Column("training documents"),
        Column("bytes", show=tables.size),
        Column("tokens", show=tables.count),
        Column("validation documents"),
        Column("bytes", show=tables.size),
        Column("tokens", show=tables.count),
    )
    rows = []
    for source in sources:
        splits = [(s.documents, s.bytes, s.tokens) for s in (source.train, source.valid)]
        rows.append((source.name, source.files, source.duplicates, *splits[0], *splits[1]))
    return Table("Sources", columns, rows)


def key(name: str) -> str:
    """`name` as a word of report.json."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
