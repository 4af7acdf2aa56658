"""`tools/bench.py train --sweeps`: cost of a step against experts, sequence length and depth.

Tables, JSON, and with `--plots FOLDER` a PNG for each.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_ernie.bench.results import Result
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.plots import Curve, line_plot
from paddle_ernie.monitor.tables import Column, Table

if TYPE_CHECKING:
    from paddle_ernie.train.bench import Shapes
    from paddle_ernie.train.bench_sweeps import SweepPoint

EXPERTS_GOAL = 1.25  # slowest over fastest step, 8 to 256 experts


def bench_sweeps(shapes: "Shapes", plots: Path | None, format_name: str = "fp32") -> list[Result]:
    """All three; the model of `shapes` is where they start from."""
    from paddle_ernie.train.bench_sweeps import sweep_depth, sweep_experts, sweep_seq_len

    sweeps = (
        ("experts", "experts", sweep_experts(shapes, format_name=format_name)),
        ("seq_len", "tokens of a row", sweep_seq_len(shapes, format_name=format_name)),
        ("depth", "layers", sweep_depth(shapes, format_name=format_name)),
    )
    results = [_result(name, label, points) for name, label, points in sweeps]
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        for name, label, points in sweeps:
            _plot(plots / f"step-time-{name.replace('_', '-')}.png", label, points)
    return results


def _result(name: str, label: str, points: "list[SweepPoint]") -> Result:
    seconds = [point.seconds for point in points]
    passes = [point.seconds - point.update_seconds for point in points]
    rows = [
        (
            point.value,
            f"{point.seconds * 1e3:.0f} ms",
            f"{point.seconds / seconds[0]:.2f}",
            f"{point.flops / points[0].flops:.2f}",
            f"{(point.seconds - point.update_seconds) * 1e3:.0f} ms",
            f"{point.update_seconds * 1e3:.0f} ms",
            point.parameters,
            round(point.tokens_per_s),
        )
        for point in points
    ]
    columns = (
        Column(label),
        Column("step"),
        Column("time, relative"),
        Column("FLOPs, relative"),
        Column("forward and backward"),
        Column("optimizer"),
        Column("parameters", show=tables.count),
        Column("tokens/s"),
    )
    title = f"Step time against {label}"
    if name == "experts":
        title += f" (slowest over fastest {max(seconds) / min(seconds):.2f}, goal {EXPERTS_GOAL})"
    values: dict[str, Any] = {
        "points": [{**asdict(point), "tokens_per_s": point.tokens_per_s} for point in points],
        "max_over_min": max(seconds) / min(seconds),
        "max_over_min_without_optimizer": max(passes) / min(passes),
    }
    return Result(f"sweep_{name}", Table(title, columns, rows), values)


def _plot(path: Path, label: str, points: "list[SweepPoint]") -> None:
    x = np.array([point.value for point in points])
    seconds = np.array([point.seconds for point in points])
    update = np.array([point.update_seconds for point in points])
    flops = np.array([point.flops for point in points])
    curves = [
        Curve("step", x, seconds * 1e3),
        Curve("forward and backward", x, (seconds - update) * 1e3),
        Curve("in proportion to FLOPs", x, seconds[0] * 1e3 * flops / flops[0]),
    ]
    line_plot(
        path, curves, title=f"Step time against {label}", x_label=label, y_label="milliseconds"
    )
