"""The pipeline's report: `report.md`, plots and `report.json` from what the stages recorded.

Called by the pipeline's `report` stage; reads files only (`recorded.py` says which), so a report
can be written again at any time without training.

Names in report.json, in addition to `format`:
    bpb.full | bpb.subnet.<name> | bpb.extracted_before | bpb.extracted_after | bpb.bigram | bpb.xz
    loss.* and ppl.* for the same models
    params.{total,active,total_without_embedding,active_without_embedding}, params.extracted.*
    ratio.{total,active}          kept share of the parameters without embeddings
    time.<stage>_s, throughput.<stage>_tokens_per_s, tokens.<stage>, steps.<stage>
    flop_utilisation.<stage>, memory.<stage>_{peak,predicted}_bytes
    tokenizer.{vocab_size,bytes_per_token}
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from paddle_ernie.monitor import plots, tables
from paddle_ernie.monitor.report import Report
from paddle_ernie.monitor.tables import Cell, Column, Table
from paddle_ernie.post.recorded import (
    FULL,
    Evaluation,
    Parameters,
    PretrainRecord,
    RunRecord,
    read_run,
)
from paddle_ernie.post.report_sections import (
    add_parameters,
    add_samples,
    add_stages,
    add_text,
    key,
)
from paddle_ernie.post.report_training import add_experts, add_training

if TYPE_CHECKING:
    from paddle_ernie.post.pipeline import StageFolder

COMPARISON_READING = (
    "Lower is better. Bits a byte is what each model needs to encode one byte of text it has not "
    "seen, whatever its tokenizer; parameters are counted without embeddings, active ones are "
    "those that one token passes."
)
BASELINES_READING = (
    " The byte bigram was fitted to the training text; xz packs the validation text as one file."
)


@dataclass(frozen=True)
class Row:
    """One model in the comparison."""

    key: str
    """Name after `bpb.` in report.json."""
    label: str
    score: Evaluation
    params: Parameters | None = None


def write_pipeline_report(
    output_dir: Path, folders: Sequence["StageFolder"], console: Console
) -> Report:
    """Write the report of the run in `output_dir` there, show its main table, return it.

    `folders` are the stages before the report in order, and its own. Raises CheckpointError
    when a stage's record is missing or damaged.
    """
    run = read_run(folders)
    report = Report(f"Report of {output_dir.name}")
    report.text(
        "Everything here was measured on documents that were held out from training. The same "
        "figures for programs are in `report.json`; the curves in more detail: "
        f"`visualdl --logdir {output_dir}`."
    )
    comparison = _add_comparison(report, run)
    add_parameters(report, run)
    add_training(report, run)
    add_experts(report, run)
    add_samples(report, run)
    stages = add_stages(report, run)
    add_text(report, run)
    path = report.write(output_dir)
    _show(console, comparison, "nats a token", "perplexity")
    _show(console, stages, "predicted", "FLOP utilisation")
    console.print(f"report: {path}", soft_wrap=True)
    return report


def _show(console: Console, table: Table, *left_out: str) -> None:
    """A table on a terminal of 80 characters: fewer columns than in the report."""
    kept = [i for i, column in enumerate(table.columns) if column.name not in left_out]
    rows = [[row[i] for i in kept] for row in table.rows]
    console.print(Table(table.title, tuple(table.columns[i] for i in kept), rows).to_rich())


def model_rows(run: RunRecord) -> list[Row]:
    """Every model of the run with its validation result: full, subnets, extracted."""
    rows = []
    if run.full is not None:
        rows = _full_rows(run.full)
    if run.healed is not None and run.extract is not None:
        cut = run.extract.params_after
        before, after = run.extract.eval.get(FULL), run.healed.summary.eval[FULL]
        if before is not None:
            rows.append(Row("extracted_before", "extracted, as cut", before, cut))
        rows.append(Row("extracted_after", "extracted, after mid-training", after, cut))
    return rows


def _full_rows(record: PretrainRecord) -> list[Row]:
    evaluations = record.summary.eval
    rows = [Row(FULL, "full model", evaluations[FULL], record.summary.parameters)]
    declared = [name for name in record.step.eval.subnets if name in evaluations]
    for name in dict.fromkeys([*declared, *evaluations]):
        if name != FULL:
            score = evaluations[name]
            rows.append(Row(f"subnet.{key(name)}", f"subnet {name}", score, score.params))
    return rows


def _add_comparison(report: Report, run: RunRecord) -> Table:
    rows = model_rows(run)
    for row in rows:
        report.number(f"bpb.{row.key}", row.score.bpb)
        report.number(f"loss.{row.key}", row.score.loss)
        report.number(f"ppl.{row.key}", row.score.ppl)
    baselines: list[tuple[str, float]] = []
    reading = COMPARISON_READING
    if run.tokenizer is not None:
        bpb = run.tokenizer.bpb
        report.add_numbers("bpb", {"bigram": bpb.bigram, "xz": bpb.xz})
        baselines = [("byte bigram", bpb.bigram), ("xz -9e", bpb.xz)]
        reading += BASELINES_READING
    columns = (
        Column("model", align="left"),
        Column("bits a byte", show=tables.bits),
        Column("nats a token", show=tables.bits),
        Column("perplexity"),
        Column("parameters", show=tables.count),
        Column("active", show=tables.count),
    )
    cells: list[tuple[Cell, ...]] = [_comparison_cells(row) for row in rows]
    cells += [(label, value, None, None, None, None) for label, value in baselines]
    table = Table("Validation loss of every model of the run", columns, cells)
    report.heading("How good are the models?")
    report.text(_headline(run, rows))
    report.table(table, reading)
    labels = [row.label for row in rows] + [label for label, _ in baselines]
    values = [row.score.bpb for row in rows] + [value for _, value in baselines]
    report.figure(
        "bits_per_byte",
        lambda path: plots.bar_plot(
            path,
            labels,
            values,
            title="Validation loss",
            x_label="bits a byte (lower is better)",
            highlight=range(len(rows)),
        ),
        "Bits a byte on validation text: models in blue, simple references in grey.",
    )
    return table


def _comparison_cells(row: Row) -> tuple[Cell, ...]:
    params = row.params
    sizes = (
        (None, None)
        if params is None
        else (params.total_without_embedding, params.active_without_embedding)
    )
    return (row.label, row.score.bpb, row.score.loss, row.score.ppl, *sizes)


def _headline(run: RunRecord, rows: list[Row]) -> str:
    scores = {row.key: row.score.bpb for row in rows}
    parts = []
    if FULL in scores:
        parts.append(f"The full model needs **{scores[FULL]:.3f} bits a byte**")
        if run.tokenizer is not None:
            gap = run.tokenizer.bpb.bigram - scores[FULL]
            side = "fewer" if gap >= 0 else "more"
            parts.append(f", {abs(gap):.3f} {side} than a byte bigram model")
        parts.append(". ")
    if run.extract is not None:
        ratios = run.extract.ratios
        parts.append(
            f"The extracted model keeps {tables.percent(ratios.total)} of the parameters and "
            f"{tables.percent(ratios.active)} of the active ones (without embeddings)"
        )
        if "extracted_after" in scores:
            parts.append(f" and needs **{scores['extracted_after']:.3f} bits a byte**")
            if "extracted_before" in scores:
                parts.append(f" after mid-training, {scores['extracted_before']:.3f} before it")
        parts.append(".")
    return "".join(parts) or "No model was trained in this run."
