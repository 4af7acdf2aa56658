"""Sections of the pipeline's report that are plots over training: losses, axes, experts.

Called by `report.py`. A plot whose metrics were not logged is left out.
"""

import functools
import re
from pathlib import Path

import numpy as np

from paddle_ernie.monitor import plots
from paddle_ernie.monitor.plots import Curve, Reference
from paddle_ernie.monitor.reader import Metrics
from paddle_ernie.monitor.report import Report
from paddle_ernie.post.recorded import PretrainRecord, RunRecord

SMOOTHING = 0.03  # share of the points on either side that a curve is averaged over
LOAD = re.compile(r"moe/layer_(\d+)/load")
AXES = {
    "full": "full model",
    "depth": "fewer layers",
    "width": "fewer experts",
    "sparsity": "smaller top-k",
}


def add_training(report: Report, run: RunRecord) -> None:
    """Training loss of every stage; validation and per-axis losses of the elastic one."""
    curves = [
        Curve(record.name, series.steps, series.values)
        for record in run.trained
        if (series := record.metrics.scalars.get("train/bits_per_byte")) is not None
    ]
    if not curves:
        return
    report.heading("How did training go?")
    references = []
    if run.tokenizer is not None:
        bpb = run.tokenizer.bpb
        references = [Reference("byte bigram", bpb.bigram), Reference("xz -9e", bpb.xz)]
    draw = functools.partial(
        plots.line_plot,
        curves=curves,
        title="Training loss",
        x_label="optimizer steps of the stage",
        y_label="bits a byte",
        smooth=SMOOTHING,
        references=references,
    )
    report.figure(
        "training_loss",
        draw,
        "Training loss, mean over every kind of sub-model the rows sampled; faint lines are the "
        "logged values, strong ones their moving average. References are on validation text.",
    )
    if run.full is not None:
        _add_validation(report, run.full)
        _add_axes(report, run.full)


def add_experts(report: Report, run: RunRecord) -> None:
    """How evenly the experts of the full model were used."""
    if run.full is None:
        return
    layers, loads = final_loads(run.full.metrics)
    balance = run.full.metrics.scalars.get("moe/load_max_over_mean")
    if not layers and balance is None:
        return
    report.heading("Are the experts used evenly?")
    if layers:
        draw = functools.partial(
            plots.heatmap,
            values=loads,
            title="Load of each expert at the end of training",
            x_label="expert",
            y_label="layer",
            row_labels=[str(layer) for layer in layers],
            colour_label="tokens / layer mean",
            centre=1.0,
        )
        report.figure(
            "expert_load",
            draw,
            "White is an even share; red experts get more tokens, blue ones fewer.",
        )
    if balance is not None:
        draw = functools.partial(
            plots.line_plot,
            curves=[Curve("busiest expert", balance.steps, balance.values)],
            title="Busiest expert over the mean",
            x_label="optimizer steps",
            y_label="ratio",
            smooth=SMOOTHING,
            references=[Reference("perfectly even", 1.0)],
        )
        report.figure(
            "expert_balance",
            draw,
            "Tokens of the busiest expert of any layer over the mean; 1 is perfect balance.",
        )


def final_loads(metrics: Metrics) -> tuple[list[int], np.ndarray]:
    """Layers with experts, and [layers, experts] their last logged loads over the layer's mean."""
    found = {
        int(match[1]): records[-1][1].counts
        for name, records in metrics.histograms.items()
        if (match := LOAD.fullmatch(name))
    }
    layers = sorted(found)
    width = max((len(counts) for counts in found.values()), default=0)
    loads = np.full((len(layers), width), np.nan)
    for row, layer in enumerate(layers):
        counts = found[layer]
        loads[row, : len(counts)] = counts / max(counts.mean(), 1e-9)
    return layers, loads


def _add_validation(report: Report, record: PretrainRecord) -> None:
    curves = [
        Curve(_subnet_label(name), series.steps, series.values)
        for name, series in record.metrics.scalars.items()
        if name.startswith("eval/") and name.endswith("/bpb")
    ]
    if not curves:
        return

    def draw(path: Path) -> None:
        plots.line_plot(
            path,
            curves,
            title=f"Validation loss during {record.name}",
            x_label="optimizer steps",
            y_label="bits a byte",
        )

    report.figure(
        "validation_loss",
        draw,
        "The full model and its named subnets; one run trains all of them.",
    )


def _add_axes(report: Report, record: PretrainRecord) -> None:
    scalars = record.metrics.scalars
    curves = [
        Curve(label, scalars[f"loss/axis/{axis}"].steps, scalars[f"loss/axis/{axis}"].values)
        for axis, label in AXES.items()
        if f"loss/axis/{axis}" in scalars
    ]
    if len(curves) < 2:
        return
    draw = functools.partial(
        plots.line_plot,
        curves=curves,
        title="Training loss by elastic axis",
        x_label="optimizer steps",
        y_label="nats a token",
        smooth=SMOOTHING,
    )
    report.figure(
        "axis_losses",
        draw,
        "Rows that ran the full model, and rows reduced along each axis (some along several).",
    )


def _subnet_label(name: str) -> str:
    return name.removeprefix("eval/").removesuffix("/bpb")
