"""Does training in bf16 or FP8 cost quality? One pipeline in every format, over several seeds.

    for each seed:  fp32   bf16   fp8      the same configuration, `precision` apart
                      \\      |      /
             final validation loss of each stage, relative to fp32

Called by `tools/compare_precision.py`. Every run is `tools/train.py` in a process of its own, in a
folder that a later call finds finished.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.errors import InputError

TRAIN = Path(__file__).resolve().parents[2] / "tools" / "train.py"
BASELINE = "fp32"
FORMATS: dict[str, tuple[str, ...]] = {
    "fp32": ("precision.dtype=fp32",),
    "bf16": ("precision.dtype=bf16",),
    "fp8": ("precision.dtype=bf16", "precision.fp8=true"),
}
"""Overrides of the configuration."""
TRAINED = "pretrain"


@dataclass(frozen=True)
class Outcome:
    """How one stage of one run ended."""

    format: str
    seed: int
    stage: str
    loss: float
    """Nats per token on the validation rows after the last step."""
    tokens_per_s: float
    """Training speed of the stage."""


def run_study(config: Path, seeds: Sequence[int], folder: Path) -> list[Outcome]:
    """Train whatever is not trained yet, and collect."""
    outcomes = []
    for seed in seeds:
        for name in FORMATS:
            run = folder / f"{name}-seed{seed}"
            _train(config, name, seed, run)
            outcomes += outcomes_of(run, name, seed)
    return outcomes


def _train(config: Path, name: str, seed: int, run: Path) -> None:
    overrides = [f"run.seed={seed}", f"run.output_dir={run}", *FORMATS[name]]
    options = [part for override in overrides for part in ("-o", override)]
    done = subprocess.run([sys.executable, str(TRAIN), "-c", str(config), *options])
    if done.returncode:
        raise InputError(
            f"{config} in {name} with seed {seed} ended with exit code {done.returncode}; "
            "its message is above"
        )


def outcomes_of(run: Path, name: str, seed: int) -> list[Outcome]:
    """Every trained stage of a finished run folder."""
    found = []
    for path in sorted(run.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if summary.get("kind") == TRAINED:
            loss = summary["eval"]["full"]["loss"]
            speed = summary["tokens_per_s"]
            found.append(Outcome(name, seed, path.parent.name, loss, speed))
    if not found:
        raise InputError(f"{run}: no finished training stage; the study needs a pipeline with one")
    return found


def differences(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[float]]:
    """(stage, format) -> loss relative to fp32 of the same seed, minus 1, seed by seed."""
    base = {(o.stage, o.seed): o.loss for o in outcomes if o.format == BASELINE}
    result: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        relative = outcome.loss / base[outcome.stage, outcome.seed] - 1
        result.setdefault((outcome.stage, outcome.format), []).append(relative)
    return result


def table(outcomes: Sequence[Outcome]) -> Table:
    """A line per stage and format."""
    seeds = sorted({outcome.seed for outcome in outcomes})
    columns = (
        Column("stage", align="left"),
        Column("format", align="left"),
        *(Column(f"loss, seed {seed}") for seed in seeds),
        Column("mean"),
        Column("against fp32"),
        Column("tokens/s"),
    )
    relative = differences(outcomes)
    rows = []
    for (stage, name), changes in sorted(relative.items(), key=lambda item: item[0][0]):
        own = [o for o in outcomes if (o.stage, o.format) == (stage, name)]
        losses = [o.loss for o in sorted(own, key=lambda o: o.seed)]
        rows.append(
            (
                stage,
                name,
                *(f"{loss:.4f}" for loss in losses),
                f"{statistics.mean(losses):.4f}",
                f"{statistics.mean(changes):+.3%}",
                f"{statistics.median(o.tokens_per_s for o in own):,.0f}",
            )
        )
    return Table("Final validation loss, nats per token", columns, rows)


def to_json(outcomes: Sequence[Outcome]) -> Mapping[str, object]:
    """For programs."""
    relative = differences(outcomes)
    return {
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "relative_to_fp32": {
            f"{stage}/{name}": statistics.mean(changes)
            for (stage, name), changes in relative.items()
        },
    }
