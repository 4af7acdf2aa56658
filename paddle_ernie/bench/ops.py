"""`tools/bench.py ops`: each operator beside torch's, in every format and every way torch has.

Two processes live through all cases and take turns; weights are packed once, packing is timed
apart. A figure of ours is related to the rival's fastest way in the same format (fp8: bf16), for
expert shapes in any format.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paddle_ernie.bench.cases import THEIR_FORMATS, Case, all_cases
from paddle_ernie.bench.duel import Duel, fight
from paddle_ernie.bench.party import Party
from paddle_ernie.bench.peak import BF16_DOT_PER_CORE, Peak, measure_peak
from paddle_ernie.bench.results import Result, ratio_column
from paddle_ernie.bench.sides import Sides, remark
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Cell, Column, Table

SECONDS_PER_TURN = 0.25
COLUMNS = (
    Column("case", align="left"),
    Column("format", align="left"),
    Column("ours"),
    Column("GFLOP/s"),
    Column("of peak"),
    Column("packing"),
    Column("torch"),
    Column("its fastest way", align="left"),
    ratio_column(),
)


def bench_ops(
    sides: Sides, model: ModelConfig, *, families: Sequence[str] = (), seconds: float | None = None
) -> list[Result]:
    """Every case of `families` (none: of all)."""
    cases = [case for case in all_cases(model) if not families or case.family in families]
    peak = measure_peak(sides.threads)
    with sides.both() as (ours, theirs):
        duels = {
            case: _duel(case, ours, theirs, sides.rounds, seconds or SECONDS_PER_TURN)
            for case in cases
        }
    remark(list(duels.values()))
    figures = {
        case: [_figures(case, duel, name, peak, sides.threads) for name in duel.modes("ours")]
        for case, duel in duels.items()
    }
    names = list(dict.fromkeys(case.family for case in cases))
    results = [_peak_result(peak, sides.threads)]
    results += [_family(name, figures, duels) for name in names]
    return results if sides.rival is None else [*results, _summary(names, figures)]


def _duel(case: Case, ours: Party, theirs: Party | None, rounds: int, seconds: float) -> Duel:
    def ask(party: Party, format_name: str, method: str) -> Any:
        return lambda: party.ask(case.request(format_name, method, seconds))

    our_modes = {name: ask(ours, name, "") for name in case.formats}
    their_modes = {}
    if theirs is not None:
        their_modes = {
            f"{name} {method}": ask(theirs, name, method)
            for method in case.methods
            for name in THEIR_FORMATS
        }
    return fight(our_modes, their_modes, rounds=rounds)


def _family(
    family: str, figures: Mapping[Case, list[dict[str, Any]]], duels: Mapping[Case, Duel]
) -> Result:
    """All cases of an operator."""
    rows: list[tuple[Cell, ...]] = []
    values = []
    for case, found in figures.items():
        if case.family != family:
            continue
        rows += [_row(case, line) for line in found]
        values.append(
            {
                "case": case.name,
                "formats": {line["format"]: line for line in found},
                "missing": duels[case].missing,
                "others": duels[case].others,
                "pairs": duels[case].pairs(),
            }
        )
    # What no case of this operator has (FLOPs, packing, a rival) needs no column.
    kept = [at for at in range(len(COLUMNS)) if any(row[at] not in (None, "") for row in rows)]
    columns = tuple(COLUMNS[at] for at in kept)
    cells = [tuple(row[at] for at in kept) for row in rows]
    return Result(family, Table(family.replace("_", " "), columns, cells), values)


def _summary(families: Sequence[str], figures: Mapping[Case, list[dict[str, Any]]]) -> Result:
    """The rival's time over ours, by operator and format."""
    rows, values = [], {}
    for family in families:
        lines = [line for case, found in figures.items() if case.family == family for line in found]
        for format_name in dict.fromkeys(line["format"] for line in lines):
            ratios = [
                line["ratio"]
                for line in lines
                if line["format"] == format_name and line["ratio"] is not None
            ]
            if not ratios:
                continue
            found = (min(ratios), statistics.median(ratios), max(ratios))
            rows.append((family.replace("_", " "), format_name, len(ratios), *found))
            values[f"{family} {format_name}"] = dict(
                zip(("worst", "median", "best"), found, strict=True)
            )
    columns = (
        Column("operator", align="left"),
        Column("format", align="left"),
        Column("cases"),
        *map(ratio_column, ("worst", "median", "best")),
    )
    return Result("ratio", Table("torch's time over ours", columns, rows), values)


def _row(case: Case, line: dict[str, Any]) -> tuple[Cell, ...]:
    return (
        case.size,
        line["format"],
        _time(line["best"]),
        f"{line['gflops']:,.0f}" if case.flops else None,
        tables.percent(line["share_of_peak"]) if line["share_of_peak"] else None,
        _time(line["packing"]) if line["packing"] is not None else None,
        _time(line["theirs_best"]) if line["theirs"] else None,
        line["theirs"] or "",
        line["ratio"],
    )


def _figures(
    case: Case, duel: Duel, format_name: str, peak: Peak | None, threads: int
) -> dict[str, Any]:
    """One line: ours in a format, and what it is related to."""
    same = "fp32" if format_name == "fp32" else "bf16"
    in_same = [mode for mode in duel.modes("theirs") if mode.startswith(same)]
    same_mode, any_mode = duel.fastest(in_same), duel.fastest()
    mode = any_mode if case.any_format else same_mode or any_mode
    best = duel.best("ours", format_name)
    packing = [
        turn.values["packing"]
        for turn in duel.turns
        if (turn.side, turn.mode) == ("ours", format_name) and "packing" in turn.values
    ]
    gflops = case.flops / best / 1e9
    top = peak.of(format_name) if peak else 0.0
    return {
        "format": format_name,
        "best": best,
        "median": duel.median("ours", format_name),
        "packing": min(packing) if packing else None,
        "gflops": gflops,
        "share_of_peak": gflops / top if top and gflops else None,
        "share_of_bf16_dot_goal": gflops / (threads * BF16_DOT_PER_CORE),
        "theirs": mode,
        "theirs_best": duel.best("theirs", mode) if mode else None,
        "theirs_median": duel.median("theirs", mode) if mode else None,
        "ratio": duel.best("theirs", mode) / best if mode else None,
        "ratio_same_format": duel.best("theirs", same_mode) / best if same_mode else None,
        "ratio_any_format": duel.best("theirs", any_mode) / best if any_mode else None,
    }


def _peak_result(peak: Peak | None, threads: int) -> Result:
    names = {"fp32": "fp32", "bf16_dot": "bf16 dot product", "bf16_tiles": "bf16 tiles (AMX)"}
    values = {name: getattr(peak, name) for name in names} if peak else {}
    rows = [(label, values.get(name) or None) for name, label in names.items()]
    rows.append(
        (f"goal's yardstick, {threads} x {BF16_DOT_PER_CORE:.0f}", threads * BF16_DOT_PER_CORE)
    )
    title = f"Arithmetic on {threads} threads"
    return Result("peak", Table(title, (Column("", align="left"), Column("GFLOP/s")), rows), values)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
