"""What our engine's features bring and cost, part of `tools/bench.py generate`.

Two ways to serve the same requests take turns within one process; a ratio above 1 means that the
second is faster. Random weights: time does not depend on them, save through the experts' load.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.bench.results import Result, ratio_column
from paddle_ernie.bench.sides import Sides, model_request
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.errors import PaddleErnieError

NEW = 64
ROUNDS = 8  # pairs: the cost of routes is a few percent, a single pair tells nothing
TOP_K = 4
"""Experts per token of the model whose top-k is cut to a quarter."""


@dataclass(frozen=True)
class Feature:
    """Two ways to serve, and how many sequences at once."""

    name: str
    text: str
    first: dict[str, Any]
    second: dict[str, Any]
    """Options of the engine; `hit` and `routes` concern its requests."""
    rows: int
    prompt: int = 32
    new: int = NEW
    part: str = "whole"
    goal: str = "–"


def features(longest: int) -> list[Feature]:
    """All of them, for a model of so many positions."""
    fp8, bf16 = {"precision": "fp8"}, {"precision": "bf16"}
    found = []
    for rows in (1, 32):
        found += [
            Feature("fp8", "FP8 against bf16", bf16, fp8, rows),
            Feature(
                "top_k",
                f"top-{TOP_K // 4} against top-{TOP_K}",
                {**bf16, "moe_k": TOP_K},
                {**bf16, "moe_k": TOP_K // 4},
                rows,
                goal="1.3 or more",
            ),
            Feature(
                "routes",
                "with routes against without",
                bf16,
                {**bf16, "routes": True},
                rows,
                goal="0.97 or more",
            ),
        ]
    prompt = longest - 8
    prefix = {**bf16, "enable_prefix_caching": True}
    found += [
        Feature(
            "prefix",
            f"prefix of {prompt} tokens cached against new",
            prefix,
            {**prefix, "hit": True},
            rows,
            prompt,
            new=1,
            part="prefill",
        )
        for rows in (1, 8)
    ]
    return found


def bench_serving(
    sides: Sides, model: ModelConfig, work: Path, *, new: int = NEW, rounds: int = ROUNDS
) -> list[Result]:
    """One table of all features."""
    wide = model.model_copy(update={"moe_k": min(TOP_K, model.moe_num_experts)})
    folder = work / "features"
    lines = []
    with sides.ours() as party:
        request = {"do": "export", "model": model_request(wide), "model_dir": str(folder)}
        _ask(party, {**request, "public": None})
        for feature in features(model.max_position_embeddings):
            values = _ask(
                party,
                {
                    "do": "feature",
                    "model_dir": str(folder),
                    "first": {"moe_k": model.moe_k, **feature.first},
                    "second": {"moe_k": model.moe_k, **feature.second},
                    "rows": feature.rows,
                    "prompt": feature.prompt,
                    "new": min(feature.new, new),
                    "part": feature.part,
                    "rounds": rounds,
                },
            )
            lines.append({"feature": feature.name, "text": feature.text, "rows": feature.rows,
                          "part": feature.part, "goal": feature.goal, **values})  # fmt: skip
    return [_result(lines)]


def _ask(party: Any, request: dict[str, Any]) -> dict[str, Any]:
    answer = party.ask(request)
    if answer.missing:
        raise PaddleErnieError(f"measuring a feature of the engine failed: {answer.missing}")
    return answer.values


def _result(lines: list[dict[str, Any]]) -> Result:
    columns = (
        Column("what", align="left"),
        Column("at once"),
        Column("first"),
        Column("second"),
        ratio_column(),
        ratio_column("median ratio"),
        Column("goal"),
    )
    rows = [
        (
            line["text"],
            line["rows"],
            *(f"{line[way]['best'] * 1e3:.1f} ms" for way in ("first", "second")),
            line["ratio"],
            line["median_ratio"],
            line["goal"],
        )
        for line in lines
    ]
    return Result("features", Table("Features of the engine", columns, rows), lines)
