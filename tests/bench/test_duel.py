"""Turns alternate, slow modes drop out, and the verdict takes the best of each side."""

from collections.abc import Callable

from paddle_ernie.bench.duel import fight
from paddle_ernie.bench.party import Answer


class Side:
    """Measures what it is told to; notes when it was asked."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def mode(self, name: str, *seconds: float, missing: str = "") -> Callable[[], Answer]:
        values = iter(seconds)

        def measure() -> Answer:
            self.log.append(name)
            if missing:
                return Answer({}, missing, 0.0)
            best = next(values)
            return Answer({"best": best, "median": 2 * best}, "", 0.5)

        return measure


def test_turns_alternate_and_the_slow_modes_drop_out() -> None:
    log: list[str] = []
    side = Side(log)
    ours = {"a": side.mode("a", 3, 1, 2, 4), "b": side.mode("b", 5, 5, 5)}
    theirs = {
        "x": side.mode("x", 10, 8, 9, 7),
        "y": side.mode("y", 30),
        "z": side.mode("z", missing="no kernel"),
    }
    duel = fight(ours, theirs, rounds=2)
    assert log == [*"ax", *"by", *"az", *"ax", *"bx"]
    assert duel.missing == {"theirs: z": "no kernel"}
    assert duel.modes("ours") == ["a", "b"] and duel.modes("theirs") == ["x", "y"]
    assert (duel.best("ours", "a"), duel.median("ours", "a")) == (1, 4)
    assert duel.fastest() == "x" and duel.best("theirs", "x") == 8
    assert duel.fastest(["y", "z"]) == "y" and duel.fastest(["z"]) is None
    pairs = [(pair["ours"]["mode"], pair["theirs"]["mode"]) for pair in duel.pairs()]
    assert pairs == [("a", "x"), ("b", "y"), ("a", "x"), ("b", "x")]
    assert duel.others == 0.5


def test_modes_that_are_close_stay() -> None:
    log: list[str] = []
    side = Side(log)
    theirs = {"x": side.mode("x", 10, 10), "y": side.mode("y", 11, 5), "z": side.mode("z", 12)}
    duel = fight({"a": side.mode("a", *range(1, 9))}, theirs, rounds=2)
    assert log == [*"ax", *"ay", *"az", *"ax", *"ay"]
    assert duel.fastest() == "y"


def test_the_fastest_of_each_program_goes_on() -> None:
    log: list[str] = []
    side = Side(log)
    theirs = {
        "red 1": side.mode("r1", 10, 10),
        "red 2": side.mode("r2", 20),
        "blue 1": side.mode("b1", 40),
        "blue 2": side.mode("b2", 30, 30),
    }
    ours = {"a": side.mode("a", *range(1, 9))}
    duel = fight(ours, theirs, rounds=2, programs=("red", "blue"))
    assert log[8:] == ["a", "r1", "a", "b2"]
    assert duel.fastest(duel.modes_of("blue")) == "blue 2"
    assert duel.best_turn("ours", "a").values["best"] == 1


def test_alone() -> None:
    log: list[str] = []
    side = Side(log)
    duel = fight({"a": side.mode("a", 1, 2), "b": side.mode("b", 1, 2)}, {}, rounds=2)
    assert log == [*"abab"]
    assert duel.fastest() is None and duel.pairs() == []


def test_answers_with_parts_are_ranked_by_one() -> None:
    def mode(first: float, second: float) -> Callable[[], Answer]:
        parts = {"prefill": {"best": first}, "decode": {"best": second}}
        return lambda: Answer(parts, "", 0.0)

    theirs = {"x": mode(1, 9), "y": mode(9, 1)}
    duel = fight({"a": mode(1, 1)}, theirs, rounds=1, key="decode")
    assert duel.fastest(key="decode") == "y" and duel.fastest(key="prefill") == "x"
