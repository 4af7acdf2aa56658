"""PNG plots in one style: curves, bars and heat maps. Used by reports; draws without a display.

Each function writes one file at the width of a README column (900 pixels). Colours are Okabe and
Ito's, told apart by every common kind of colour blindness; curves also differ in dash pattern.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
REFERENCE_COLOUR = "#666666"
GRID_COLOUR = "#DDDDDD"
WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 7.5, 4.0, 120
STYLE = {
    "font.size": 11.0,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID_COLOUR,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class Curve:
    """One line of a plot."""

    label: str
    x: np.ndarray
    y: np.ndarray
    """Non-finite entries leave a gap."""


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare curves or bars with."""

    label: str
    value: float


def line_plot(
    path: Path,
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    smooth: float = 0.0,
    references: Sequence[Reference] = (),
) -> None:
    """Curves over a common axis.

    `smooth`, a share of the points such as 0.03, draws a moving average of that half-width over
    faint lines of the values themselves. Extreme first values do not squeeze the rest: the axis
    ends where 98 % of the points lie.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _new_figure(title, x_label, y_label)
        for index, curve in enumerate(curves):
            style = {
                "color": PALETTE[index % len(PALETTE)],
                "linestyle": DASHES[index // len(PALETTE) % len(DASHES)],
            }
            if smooth:
                axes.plot(curve.x, curve.y, color=style["color"], alpha=0.25, linewidth=1.0)
            marker = "o" if len(curve.x) < 2 else None
            axes.plot(
                curve.x, _smoothed(curve.y, smooth), label=curve.label, marker=marker, **style
            )
        for reference in references:
            axes.axhline(reference.value, color=REFERENCE_COLOUR, linestyle=":", linewidth=1.2)
            _label_reference(axes, reference)
        _limit(axes, curves, references)
        if len(curves) > 1:
            columns = 1 if len(curves) <= 4 else 2
            axes.legend(loc="upper right", ncols=columns, fontsize=10)
        _save(figure, path)


def bar_plot(
    path: Path,
    labels: Sequence[str],
    values: Sequence[float],
    *,
    title: str,
    x_label: str,
    highlight: Sequence[int] = (),
) -> None:
    """Horizontal bars with their values beside them; those in `highlight` (none: all) in colour."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _new_figure(title, x_label, "")
        figure.set_figheight(max(2.2, 1.2 + 0.36 * len(labels)))
        colours = [
            PALETTE[0] if not highlight or i in highlight else "#9DB7C9" for i in range(len(labels))
        ]
        bars = axes.barh(range(len(labels)), values, color=colours, height=0.68)
        axes.bar_label(bars, labels=[f"{value:.2f}" for value in values], padding=4, fontsize=10)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.1)
        _save(figure, path)


def heatmap(
    path: Path,
    values: np.ndarray,
    *,
    title: str,
    x_label: str,
    y_label: str,
    row_labels: Sequence[str],
    colour_label: str,
    centre: float | None = None,
) -> None:
    """`values` [rows, columns] as colours; with `centre`, colours diverge from that value."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _new_figure(title, x_label, y_label)
        figure.set_figheight(max(2.8, 1.5 + 0.3 * len(row_labels)))
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        colours = "cividis"
        if centre is not None:
            reach = max(high - centre, centre - low, 1e-9)
            low, high, colours = centre - reach, centre + reach, "RdBu_r"
        image = axes.imshow(
            values, aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest"
        )
        axes.set_yticks(range(len(row_labels)), row_labels)
        axes.grid(visible=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=axes, label=colour_label, pad=0.02)
        _save(figure, path)


def _new_figure(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    # Figure and canvas directly: pyplot keeps global state and may look for a display.
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True)
    return figure, axes


def _smoothed(values: np.ndarray, share: float) -> np.ndarray:
    """Centred average with triangular weights over `share` of the points to either side.

    Centred, because a trailing average lags behind a falling loss. Non-finite entries stay gaps and
    count for nothing.
    """
    values = np.asarray(values, dtype=np.float64)
    radius = round(share * len(values))
    if radius < 1:
        return values
    weights = np.concatenate([np.arange(1, radius + 2), np.arange(radius, 0, -1)])
    finite = np.isfinite(values)
    total = np.convolve(np.where(finite, values, 0.0), weights, mode="full")
    weight = np.convolve(finite.astype(np.float64), weights, mode="full")
    total, weight = total[radius:-radius], weight[radius:-radius]
    return np.where(finite, total / np.where(finite, weight, 1.0), np.nan)


def _limit(axes: Axes, curves: Sequence[Curve], references: Sequence[Reference]) -> None:
    points = [np.asarray(curve.y, dtype=np.float64) for curve in curves]
    values = np.concatenate(points) if points else np.zeros(0)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return
    marks = [reference.value for reference in references]
    low = min([float(values.min()), *marks])
    high = max([float(np.quantile(values, 0.98)), *marks])
    if high > low:
        margin = 0.06 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def _label_reference(axes: Axes, reference: Reference) -> None:
    axes.annotate(
        reference.label,
        xy=(0.005, reference.value),
        xycoords=("axes fraction", "data"),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=9.5,
        color=REFERENCE_COLOUR,
    )


def _save(figure: Figure, path: Path) -> None:
    # No software name or date: the same data gives the same bytes.
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
