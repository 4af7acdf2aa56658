"""Tokens in time: what is told of one run, and of several."""

import time

import pytest

from paddle_ernie.bench.rivals.timeline import Timeline, describe, percentiles


def timeline(**times: list[float]) -> Timeline:
    made = Timeline(100.0)
    for name, seconds in times.items():
        for at in seconds:
            made.note(name, 1, 100.0 + at)
    return made


def test_parts_of_a_run() -> None:
    run = timeline(a=[1.0, 2.0, 4.0], b=[3.0, 4.0, 5.0])
    assert (run.prefill, run.whole, run.decode) == (3.0, 5.0, 1.0)
    assert run.firsts() == [1.0, 3.0]
    assert run.gaps() == [1.0, 2.0, 1.0, 1.0]


def test_now_is_the_time_where_none_is_given() -> None:
    run = Timeline()
    time.sleep(0.01)
    run.note("a", 2)
    assert 0.01 <= run.whole < 1
    assert run.gaps() == [0.0]  # tokens that come together


def test_one_token_has_no_gaps() -> None:
    run = timeline(a=[1.0])
    assert run.decode == 0.0
    assert describe([run])["between_tokens"] == {"p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_distributions_are_those_of_the_fastest_repeat() -> None:
    slow, fast = timeline(a=[9.0, 20.0]), timeline(a=[1.0, 3.0])
    found = describe([slow, fast])
    assert (found["whole"]["best"], found["whole"]["median"]) == (3.0, 11.5)
    assert found["first_token"]["p50"] == 1.0 and found["between_tokens"]["p99"] == 2.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(1, 101), (50, 90, 99)),
        ([5.0], (5.0, 5.0, 5.0)),
        ([2.0, 1.0], (1.0, 2.0, 2.0)),
    ],
)
def test_percentiles_are_measured_values(values, expected) -> None:
    assert tuple(percentiles(values).values()) == expected
