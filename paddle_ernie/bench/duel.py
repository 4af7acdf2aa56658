"""Two sides in turns: A B A B, every mode once, then the rivals' fastest again and again.

    round 1     ours fp32 | theirs mode 1 | ours bf16 | theirs mode 2 | ours fp8 | theirs mode 3 ...
    round 2..n  ours fp32 | their fastest | ours bf16 | their fastest | ...

What stands beside each other in time is a pair. The verdict takes the best of each side over all
rounds: what a machine can do is its best, the rest is disturbance. Medians are kept beside it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paddle_ernie.bench.party import Answer

CLOSE = 1.15  # modes this near to the fastest stay in the race: the first round may err
Measure = Callable[[], Answer]


@dataclass(frozen=True)
class Turn:
    """One measurement."""

    side: str
    mode: str
    values: dict[str, Any]
    others: float
    """Cores that other processes kept busy meanwhile."""


@dataclass
class Duel:
    """All turns, and what could not be measured."""

    turns: list[Turn] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """"side: mode" -> why."""

    def take(self, side: str, mode: str, measure: Measure) -> None:
        """One turn."""
        answer = measure()
        if answer.missing:
            self.missing[f"{side}: {mode}"] = answer.missing
        else:
            self.turns.append(Turn(side, mode, answer.values, answer.others))

    def modes(self, side: str) -> list[str]:
        """What was measured of a side, in order of first appearance."""
        return list(dict.fromkeys(turn.mode for turn in self.turns if turn.side == side))

    def modes_of(self, program: str) -> list[str]:
        """The rivals' modes whose names begin with that of a program."""
        return [mode for mode in self.modes("theirs") if mode.startswith(program)]

    def best(self, side: str, mode: str, key: str = "") -> float:
        """Fewest seconds of a mode."""
        return min(self._series(side, mode, key, "best"))

    def median(self, side: str, mode: str, key: str = "") -> float:
        """Median of a mode's medians."""
        return statistics.median(self._series(side, mode, key, "median"))

    def most(self, side: str, mode: str, name: str) -> float:
        """Largest value that a mode reported under `name`."""
        return max(turn.values[name] for turn in self._turns(side, mode))

    def fastest(self, modes: list[str] | None = None, key: str = "") -> str | None:
        """The rival's fastest mode of `modes` (None: all); None without a rival."""
        there = [mode for mode in self.modes("theirs") if modes is None or mode in modes]
        return min(there, key=lambda mode: self.best("theirs", mode, key), default=None)

    def best_turn(self, side: str, mode: str, key: str = "") -> Turn:
        """The measurement with the fewest seconds of a mode."""
        return min(
            self._turns(side, mode),
            key=lambda turn: (turn.values[key] if key else turn.values)["best"],
        )

    def pairs(self) -> list[dict[str, Any]]:
        """Neighbours in time, ours before theirs, for the JSON file."""
        return [
            {"ours": asdict(first), "theirs": asdict(second)}
            for first, second in zip(self.turns, self.turns[1:], strict=False)
            if (first.side, second.side) == ("ours", "theirs")
        ]

    def record(self) -> dict[str, Any]:
        """What stands beside the figures in the JSON file."""
        return {"missing": self.missing, "others": self.others, "pairs": self.pairs()}

    @property
    def others(self) -> float:
        """Median of the cores that other processes kept busy."""
        return statistics.median([turn.others for turn in self.turns] or [0.0])

    def _turns(self, side: str, mode: str) -> list[Turn]:
        return [turn for turn in self.turns if (turn.side, turn.mode) == (side, mode)]

    def _series(self, side: str, mode: str, key: str, statistic: str) -> list[float]:
        values = [turn.values for turn in self._turns(side, mode)]
        return [(value[key] if key else value)[statistic] for value in values]


def fight(
    ours: Mapping[str, Measure],
    theirs: Mapping[str, Measure],
    *,
    rounds: int,
    key: str = "",
    programs: Sequence[str] = ("",),
) -> Duel:
    """`rounds` rounds of all our modes against the rival's; without a rival, ours alone.

    `key` names the part of an answer that ranks the rival's modes, if it has parts. Where several
    programs are compared with, modes begin with the name of theirs, and the fastest of each go on.
    """
    duel = Duel()
    _round(duel, ours, theirs)
    for _ in range(rounds - 1):
        _round(
            duel,
            {mode: ours[mode] for mode in duel.modes("ours")},
            {mode: theirs[mode] for program in programs for mode in _finalists(duel, program, key)},
        )
    return duel


def _round(duel: Duel, ours: Mapping[str, Measure], theirs: Mapping[str, Measure]) -> None:
    """Every mode of both sides, the shorter list again from its start where it ends."""
    turns = max(len(ours), len(theirs)) if ours and theirs else len(ours) + len(theirs)
    for turn in range(turns):
        for side, modes in (("ours", ours), ("theirs", theirs)):
            if modes:
                name = list(modes)[turn % len(modes)]
                duel.take(side, name, modes[name])


def _finalists(duel: Duel, program: str, key: str) -> list[str]:
    modes = duel.modes_of(program)
    fastest = duel.fastest(modes, key)
    if fastest is None:
        return []
    limit = CLOSE * duel.best("theirs", fastest, key)
    return [mode for mode in modes if duel.best("theirs", mode, key) <= limit]
