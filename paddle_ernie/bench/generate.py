"""`tools/bench.py generate`: greedy generation beside transformers and vLLM, with the same weights.

    our process writes one model twice: our directory, and the public layout that rivals load
    every mode of every program continues the same prompts, all handed over at once

Speed is of all new tokens over the whole time; beside it stand the prompts' share (until every
sequence has its first token), a round of decoding, and what a client sees: time to first token and
between tokens. `serving` measures what our engine adds.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_ernie.bench.cases import OUR_FORMATS, THEIR_FORMATS
from paddle_ernie.bench.duel import Duel, fight
from paddle_ernie.bench.results import Result, ratio_column
from paddle_ernie.bench.serving import bench_serving
from paddle_ernie.bench.sides import Measure, Sides, remark
from paddle_ernie.bench.subject import Subject, check_same_text, export_subjects
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.errors import PaddleErnieError

PROMPT, NEW = 32, 64
REPEATS = 3
PARTS = ("whole", "prefill", "decode")
PROGRAMS = ("transformers", "vLLM")
EXPERTS = {"generate": ("grouped_mm", "eager", "batched_mm"), "continuous": ("grouped_mm", "eager")}
"""Implementations of experts in transformers, by way of generating; the third is slow in both."""
DENSE = ("eager",)
PERCENTILES = ("p50", "p90", "p99")


def bench_generate(
    sides: Sides,
    model: ModelConfig,
    *,
    rows: Sequence[int],
    prompt: int = PROMPT,
    new: int = NEW,
    model_dir: Path | None = None,
) -> list[Result]:
    """The reference model, and that of a directory if there is one, for each number of rows."""
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-generate-") as work:
        for subject in export_subjects(sides, model, model_dir, Path(work)):
            if sides.rival is not None or sides.vllm is not None:
                results.append(check_same_text(sides, subject, prompt=prompt))
            for count in rows:
                results += _compare(sides, subject, count, prompt, new)
        results += bench_serving(sides, model, Path(work))
    return results


def _compare(sides: Sides, subject: Subject, count: int, prompt: int, new: int) -> list[Result]:
    request = subject.request(rows=count, prompt=prompt, new=new, repeats=REPEATS)
    ours = {
        name: sides.fresh("ours", {**request, "mode": {"weights": name}}) for name in OUR_FORMATS
    }
    duel = fight(
        ours,
        rival_modes(sides, subject, request),
        rounds=sides.rounds,
        key="whole",
        programs=PROGRAMS,
    )
    remark([duel])
    if not duel.modes("ours"):
        raise PaddleErnieError(f"our engine cannot be measured: {duel.missing}")
    tokens = {"whole": count * new, "prefill": count * prompt, "decode": count}
    lines = [
        _line(duel, side, mode, tokens) for side in ("ours", "theirs") for mode in duel.modes(side)
    ]
    title = f"{subject.title}, {count} at once"
    return [
        _speeds(f"{subject.prefix}generate-{count}", title, lines, duel),
        _latencies(f"{subject.prefix}latency-{count}", title, lines),
    ]


def rival_modes(sides: Sides, subject: Subject, request: dict[str, Any]) -> dict[str, Measure]:
    """Every way of every program that is there."""
    modes: dict[str, Measure] = {}
    for weights in THEIR_FORMATS:
        if sides.rival is not None:
            for way, implementations in EXPERTS.items():
                for experts in implementations if subject.has_experts else DENSE:
                    mode = {"weights": weights, "experts": experts, "continuous": way != "generate"}
                    name = f"transformers {way} {experts} {weights}"
                    modes[name] = sides.fresh("theirs", {**request, "mode": mode})
        if sides.vllm is not None:
            for compiled in (False, True):
                name = f"vLLM {'compiled' if compiled else 'eager'} {weights}"
                mode = {"weights": weights, "compiled": compiled}
                modes[name] = sides.fresh("vllm", {**request, "mode": mode})
    return modes


def _line(duel: Duel, side: str, mode: str, tokens: dict[str, int]) -> dict[str, Any]:
    best = duel.best_turn(side, mode, "whole").values
    line: dict[str, Any] = {
        "side": side,
        "mode": mode,
        "peak_bytes": duel.most(side, mode, "peak_bytes"),
        "first_token": best["first_token"],
        "between_tokens": best["between_tokens"],
        "ratio": {program: _ratio(duel, side, mode, program) for program in PROGRAMS},
    }
    for part in PARTS:
        seconds = duel.best(side, mode, part)
        line[part] = {
            "best": seconds,
            "median": duel.median(side, mode, part),
            "tokens_per_s": tokens[part] / seconds,
        }
    return line


def _ratio(duel: Duel, side: str, mode: str, program: str) -> float | None:
    """Their whole time over ours; their fastest way in any format."""
    rival = duel.fastest(duel.modes_of(program), "whole")
    if side != "ours" or rival is None:
        return None
    return duel.best("theirs", rival, "whole") / duel.best("ours", mode, "whole")


def who(line: dict[str, Any]) -> tuple[str, str]:
    """A program, and its way; a rival's mode begins with its name."""
    if line["side"] == "ours":
        return "ours", line["mode"]
    program, _, way = line["mode"].partition(" ")
    return program, way


def _speeds(key: str, title: str, lines: list[dict[str, Any]], duel: Duel) -> Result:
    columns = (
        Column("", align="left"),
        Column("mode", align="left"),
        Column("tokens/s"),
        Column("prefill tokens/s"),
        Column("decode tokens/s"),
        Column("memory"),
        *(ratio_column(f"to {program}") for program in PROGRAMS),
    )
    rows = [
        (
            *who(line),
            *(round(line[part]["tokens_per_s"]) for part in PARTS),
            tables.size(line["peak_bytes"]),
            *(line["ratio"][program] for program in PROGRAMS),
        )
        for line in lines
    ]
    values = {
        "lines": lines,
        "ratio": {line["mode"]: line["ratio"] for line in lines if line["side"] == "ours"},
        "fastest": {name: duel.fastest(duel.modes_of(name), "whole") for name in PROGRAMS},
        **duel.record(),
    }
    return Result(key, Table(f"Generation: {title}", columns, rows), values)


def _latencies(key: str, title: str, lines: list[dict[str, Any]]) -> Result:
    parts = (("first_token", "first token"), ("between_tokens", "between tokens"))
    columns = (
        Column("", align="left"),
        Column("mode", align="left"),
        *(Column(f"{text} {share}") for _, text in parts for share in PERCENTILES),
    )
    rows = [
        (
            *who(line),
            *(f"{line[part][share] * 1e3:.2f} ms" for part, _ in parts for share in PERCENTILES),
        )
        for line in lines
    ]
    values = [
        {name: line[name] for name in ("side", "mode", *(p for p, _ in parts))} for line in lines
    ]
    return Result(key, Table(f"What a client sees: {title}", columns, rows), values)
