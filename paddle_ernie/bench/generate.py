"""`tools/bench.py generate`: greedy generation beside transformers' `generate`, random weights.

Prefill is the time to the first new token, decode the time of each one after it.
"""

from collections.abc import Sequence
from typing import Any

from paddle_ernie.bench.cases import OUR_FORMATS, THEIR_FORMATS
from paddle_ernie.bench.duel import Duel, fight
from paddle_ernie.bench.results import Result, ratio_column
from paddle_ernie.bench.sides import Sides, model_request, remark
from paddle_ernie.bench.train import EXPERTS
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table

PROMPT, NEW = 128, 64
REPEATS = 3
PARTS = ("prefill", "decode")


def bench_generate(
    sides: Sides, model: ModelConfig, *, rows: Sequence[int], prompt: int = PROMPT, new: int = NEW
) -> list[Result]:
    """The comparison for each number of sequences at once."""
    results = []
    for count in rows:
        request = {
            "do": "generate",
            "model": model_request(model),
            "rows": count,
            "prompt": prompt,
            "new": new,
            "repeats": REPEATS,
        }
        duel = _duel(sides, request)
        remark([duel])
        tokens = {"prefill": count * prompt, "decode": count}
        results.append(_result(f"generate-{count}", duel, tokens))
    return results


def _duel(sides: Sides, request: dict[str, Any]) -> Duel:
    ours = {
        name: sides.fresh("ours", {**request, "mode": {"weights": name}}) for name in OUR_FORMATS
    }
    theirs = {}
    if sides.rival is not None:
        theirs = {
            f"{experts} {weights}": sides.fresh(
                "theirs", {**request, "mode": {"experts": experts, "weights": weights}}
            )
            for experts in EXPERTS
            for weights in THEIR_FORMATS
        }
    return fight(ours, theirs, rounds=sides.rounds, key="decode")


def _result(key: str, duel: Duel, tokens: dict[str, int]) -> Result:
    lines = [
        _line(duel, side, mode, tokens) for side in ("ours", "theirs") for mode in duel.modes(side)
    ]
    rows = [
        (
            line["side"],
            line["mode"],
            *(round(line[part]["tokens_per_s"]) for part in PARTS),
            tables.size(line["peak_bytes"]),
            *(line[part]["ratio"] for part in PARTS),
        )
        for line in lines
    ]
    columns = (
        Column("", align="left"),
        Column("mode", align="left"),
        Column("prefill tokens/s"),
        Column("decode tokens/s"),
        Column("memory"),
        ratio_column("prefill ratio"),
        ratio_column("decode ratio"),
    )
    values = {
        "lines": lines,
        "ratio": {
            line["mode"]: {part: line[part]["ratio"] for part in PARTS}
            for line in lines
            if line["side"] == "ours"
        },
        **duel.record(),
    }
    return Result(key, Table(f"Generation, {tokens['decode']} at once", columns, rows), values)


def _line(duel: Duel, side: str, mode: str, tokens: dict[str, int]) -> dict[str, Any]:
    line: dict[str, Any] = {
        "side": side,
        "mode": mode,
        "peak_bytes": duel.most(side, mode, "peak_bytes"),
    }
    for part in PARTS:
        best, rival = duel.best(side, mode, part), duel.fastest(key=part)
        related = side == "ours" and rival is not None
        line[part] = {
            "best": best,
            "median": duel.median(side, mode, part),
            "tokens_per_s": tokens[part] / best,
            "ratio": duel.best("theirs", rival, part) / best if related else None,
        }
    return line
