"""Dashboards as data: every metric a training run logs, by area, with its unit and its meaning.

The list is the one place where names are explained: docs/monitoring.md prints it
(`python -m paddle_ernie.monitor.dashboards docs/monitoring.md` writes it there), and a test checks
that the page and a real run's metrics agree with it. VisualDL groups charts by the text before the
first '/', so areas are those groups.

`<layer>` stands for a layer index, `<subnet>` for `full` or a named subnet, `<i>` for a number.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.files import write_text

BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"
PLACEHOLDERS = {"<layer>": r"\d+", "<i>": r"\d+", "<subnet>": r"[^/]+"}


@dataclass(frozen=True)
class Metric:
    """One name, or a family of names."""

    name: str
    unit: str
    meaning: str
    kind: Literal["scalar", "histogram", "text"] = "scalar"

    def matches(self, name: str) -> bool:
        """Whether `name` is this metric or one of its family."""
        pattern = re.escape(self.name)
        for placeholder, values in PLACEHOLDERS.items():
            pattern = pattern.replace(re.escape(placeholder), values)
        return re.fullmatch(pattern, name) is not None


@dataclass(frozen=True)
class Area:
    """A group of charts."""

    name: str
    question: str
    """What one looks here for."""
    metrics: tuple[Metric, ...]


AREAS: tuple[Area, ...] = (
    Area(
        "loss",
        "Is it learning, and which part of the objective moves?",
        (
            Metric("loss/train", "nats a token", "mean next-token loss of the rows trained on"),
            Metric("loss/mtp", "nats a token", "mean loss of the multi-token-prediction head"),
            Metric("loss/balance", "none", "sequence-level expert balance loss, unweighted"),
            Metric("loss/axis/full", "nats a token", "loss of rows that ran the full model"),
            Metric("loss/axis/depth", "nats a token", "loss of rows with fewer layers"),
            Metric("loss/axis/width", "nats a token", "loss of rows with fewer experts"),
            Metric("loss/axis/sparsity", "nats a token", "loss of rows with a smaller top-k"),
        ),
    ),
    Area(
        "train",
        "How is the optimiser doing?",
        (
            Metric("train/bits_per_byte", "bits a byte", "loss/train per byte of text"),
            Metric("train/perplexity", "none", "exp of loss/train"),
            Metric("train/lr", "none", "learning rate of the step"),
            Metric("train/grad_norm", "none", "global gradient norm before clipping"),
            Metric("train/tokens", "tokens", "tokens trained on since step 0"),
            Metric("train/skipped_steps", "steps", "steps skipped for a non-finite loss so far"),
            Metric("train/skipped_in_window", "steps", "of them, since the last record"),
        ),
    ),
    Area(
        "eval",
        "How good is each model on text it has not seen?",
        (
            Metric("eval/<subnet>/loss", "nats a token", "validation loss"),
            Metric("eval/<subnet>/bpb", "bits a byte", "validation loss per byte of text"),
            Metric("eval/<subnet>/ppl", "none", "validation perplexity per token"),
        ),
    ),
    Area(
        "moe",
        "Are the experts used evenly?",
        (
            Metric("moe/load_max_over_mean", "ratio", "busiest expert over the mean, all layers"),
            Metric("moe/entropy", "0 to 1", "routing entropy over its maximum, mean of layers"),
            Metric("moe/bias_norm", "none", "norm of the correction biases that balance load"),
            Metric("moe/layer_<layer>/load_max_over_mean", "ratio", "busiest expert over the mean"),
            Metric("moe/layer_<layer>/entropy", "0 to 1", "routing entropy over its maximum"),
            Metric("moe/layer_<layer>/load", "tokens", "tokens of each expert", "histogram"),
        ),
    ),
    Area(
        "throughput",
        "Is the machine busy with arithmetic?",
        (
            Metric("throughput/tokens_per_s", "tokens/s", "trained tokens per second"),
            Metric(
                "throughput/flop_utilisation", "0 to 1", "model FLOP/s over this machine's peak"
            ),
            Metric("throughput/data_share", "0 to 1", "share of step time spent waiting for data"),
        ),
    ),
    Area(
        "time",
        "Where do the seconds go?",
        (
            Metric("time/step_s", "s", "one optimizer step, mean since the last record"),
            Metric("time/data_s", "s", "part of it that waits for the loader"),
            Metric("time/checkpoint_s", "s", "time the last checkpoint kept training waiting"),
        ),
    ),
    Area(
        "memory",
        "How much memory does it take?",
        (
            Metric("memory/rss_bytes", "bytes", "resident memory of the process now"),
            Metric("memory/peak_bytes", "bytes", "largest resident memory so far"),
        ),
    ),
    Area(
        "samples",
        "What does it write?",
        (Metric("samples/<i>", "text", "greedy continuation of prompt number i", "text"),),
    ),
)


def find_metric(name: str) -> Metric | None:
    """The declared metric that `name` belongs to."""
    for area in AREAS:
        for metric in area.metrics:
            if metric.matches(name):
                return metric
    return None


def markdown() -> str:
    """All areas as Markdown, as docs/monitoring.md shows them."""
    columns = tuple(Column(name, align="left") for name in ("name", "kind", "unit", "meaning"))
    parts = []
    for area in AREAS:
        rows = [(f"`{m.name}`", m.kind, m.unit, m.meaning) for m in area.metrics]
        table = Table("", columns, rows).to_markdown()
        parts.append(f"### {area.name}\n\n{area.question}\n\n{table}")
    return "\n\n".join(parts)


def with_metrics(page: str) -> str:
    """`page` with the text between its two markers replaced by `markdown()`."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"the page lacks its markers {BEGIN} and {END}")
    head, rest = page.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    return f"{head}{BEGIN}\n\n{markdown()}\n\n{END}{tail}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_text(target, with_metrics(target.read_text(encoding="utf-8")))
