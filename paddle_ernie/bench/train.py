"""`tools/bench.py train`: an optimizer step of the reference model beside transformers on torch.

Every measurement is a process of its own, so peaks of memory are comparable, and nothing is warm
that would not be in a run. First both sides show that they train the same model: the same number
of parameters, and with our weights the same loss and the same norm of the gradients.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

from paddle_ernie.bench.cases import OUR_FORMATS
from paddle_ernie.bench.duel import Duel, fight
from paddle_ernie.bench.peak import BF16_DOT_PER_CORE, Peak, measure_peak
from paddle_ernie.bench.results import Result, ratio_column
from paddle_ernie.bench.sides import Sides, model_request, remark
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cost import flops_per_token
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.errors import PaddleErnieError

STEPS = 5
EXPERTS = ("grouped_mm", "eager", "batched_mm")
"""Implementations of experts in transformers."""
RIVAL_MODES = {
    f"{experts} {name}": {"experts": experts, "autocast": name == "autocast", "weights": "fp32"}
    for experts in EXPERTS
    for name in ("fp32", "autocast")
}
OTHER_RECIPE = {
    "grouped_mm bf16 weights": {"experts": "grouped_mm", "autocast": False, "weights": "bf16"}
}
"""Shown, not compared with: weights and moments in bf16 lose small updates; ours are fp32."""
SAME = 1e-3  # relative: two fp32 programs that add in different orders
DISTINCT_DEVIATION = 0.1  # of the weights: at 0.02 every model's loss is the logarithm of V


def bench_train(
    sides: Sides, model: ModelConfig, *, rows: Sequence[int], seq_len: int, steps: int = STEPS
) -> list[Result]:
    """The comparison for each number of rows in a step."""
    peak, results = measure_peak(sides.threads), []
    if sides.rival is not None:
        results.append(check_same_model(sides, model, rows=1, seq_len=min(seq_len, 128)))
    for count in rows:
        request = {
            "do": "train",
            "model": model_request(model),
            "rows": count,
            "seq_len": seq_len,
            "steps": steps,
        }
        duel = _duel(sides, request)
        remark([duel])
        tokens = count * seq_len
        flops = tokens * flops_per_token(model, seq_len, backward=True)
        results.append(_result(f"train-{count}", duel, tokens, flops, peak, sides.threads))
    return results


def check_same_model(sides: Sides, model: ModelConfig, *, rows: int, seq_len: int) -> Result:
    """Raise unless both sides have the same parameters, loss and gradient norm."""
    distinct = model.model_copy(update={"initializer_range": DISTINCT_DEVIATION})
    with tempfile.TemporaryDirectory(prefix="same-model-") as weights, sides.both() as parties:
        request = {
            "do": "same_model",
            "model": model_request(distinct),
            "rows": rows,
            "seq_len": seq_len,
            "weights": weights,
        }
        answers = [party.ask(request) for party in parties if party is not None]
    for answer in answers:
        if answer.missing:
            raise PaddleErnieError(f"comparing the models failed: {answer.missing}")
    ours, theirs = (answer.values for answer in answers)
    for name in ours:
        if abs(ours[name] - theirs[name]) > SAME * abs(theirs[name]):
            raise PaddleErnieError(
                f"the two sides do not train the same model: {name} is {ours[name]} in ours and "
                f"{theirs[name]} in the rival's; a comparison of their speed would mean nothing"
            )
    rows_ = [(name.replace("_", " "), ours[name], theirs[name]) for name in ours]
    columns = (Column("", align="left"), Column("ours", show=_exact), Column("theirs", show=_exact))
    table = Table("The same model on both sides", columns, rows_)
    return Result("same_model", table, {"ours": ours, "theirs": theirs})


def _duel(sides: Sides, request: dict[str, Any]) -> Duel:
    ours = {
        name: sides.fresh("ours", {**request, "mode": {"weights": name}}) for name in OUR_FORMATS
    }
    theirs = {}
    if sides.rival is not None:
        theirs = {
            name: sides.fresh("theirs", {**request, "mode": mode})
            for name, mode in (RIVAL_MODES | OTHER_RECIPE).items()
        }
    return fight(ours, theirs, rounds=sides.rounds)


def _result(
    key: str, duel: Duel, tokens: int, flops: float, peak: Peak | None, threads: int
) -> Result:
    fastest = duel.fastest(list(RIVAL_MODES))
    lines = [
        _line(duel, side, mode, tokens, flops, fastest)
        for side in ("ours", "theirs")
        for mode in duel.modes(side)
    ]
    goal = threads * BF16_DOT_PER_CORE * 1e9
    for line in lines:
        rate = flops / line["best"]
        name = "fp32" if line["mode"].endswith("fp32") else "bf16"
        top = peak.of(name) * 1e9 if peak else 0.0
        line["gflops"] = rate / 1e9
        line["share_of_peak"] = rate / top if top else None
        line["share_of_bf16_dot_goal"] = rate / goal
    rows = [
        (
            line["side"],
            line["mode"],
            f"{line['best'] * 1e3:.0f} ms",
            f"{line['median'] * 1e3:.0f} ms",
            round(line["tokens_per_s"]),
            f"{line['gflops']:.0f}",
            tables.percent(line["share_of_peak"]) if line["share_of_peak"] else None,
            tables.size(line["peak_bytes"]),
            line["ratio"],
        )
        for line in lines
    ]
    columns = (
        Column("", align="left"),
        Column("mode", align="left"),
        Column("best"),
        Column("median"),
        Column("tokens/s"),
        Column("GFLOP/s"),
        Column("of peak"),
        Column("memory"),
        ratio_column(),
    )
    values = {
        "tokens": tokens,
        "flops_per_token": flops / tokens,
        "ratio": {line["mode"]: line["ratio"] for line in lines if line["side"] == "ours"},
        "fastest_rival": fastest,
        "lines": lines,
        **duel.record(),
    }
    return Result(key, Table(f"A training step of {tokens:,} tokens", columns, rows), values)


def _line(
    duel: Duel, side: str, mode: str, tokens: int, flops: float, fastest: str | None
) -> dict[str, Any]:
    """Figures of one mode; ours are related to the rival's fastest."""
    best = duel.best(side, mode)
    return {
        "side": side,
        "mode": mode,
        "best": best,
        "median": duel.median(side, mode),
        "tokens_per_s": tokens / best,
        "peak_bytes": duel.most(side, mode, "peak_bytes"),
        "ratio": duel.best("theirs", fastest) / best if side == "ours" and fastest else None,
    }


def _exact(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6f}"
