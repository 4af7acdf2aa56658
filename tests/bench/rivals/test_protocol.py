"""The stopwatch of both sides."""

import time

from paddle_ernie.bench.rivals.protocol import peak_bytes, sample, summary


def test_long_calls_are_timed_one_by_one_and_preparation_is_not() -> None:
    events: list[str] = []

    def work() -> None:
        events.append("work")
        time.sleep(0.002)

    def prepare() -> None:
        events.append("prepare")
        time.sleep(0.01)

    found = sample(work, 0.0, prepare)
    assert found["samples"] == 3
    assert events == ["prepare", "work"] * 5  # two of them warm up
    assert 0.002 <= found["best"] <= found["median"] < 0.01


def test_short_calls_are_timed_together() -> None:
    calls: list[int] = []
    found = sample(lambda: calls.append(0), 0.0)
    assert len(calls) > 300
    assert found["best"] < 1e-4


def test_summary_and_peak() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"best": 1.0, "median": 2.0, "samples": 3}
    before = peak_bytes()
    block = bytearray(b"1" * 30_000_000)
    assert peak_bytes() >= max(before, 30_000_000) and block
