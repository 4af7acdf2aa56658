"""A machine at rest passes, one that computes does not."""

import subprocess
import sys

import pytest

from paddle_ernie.bench import quiet
from paddle_ernie.bench.quiet import Quiet, look, process_seconds, system_seconds


@pytest.mark.skipif(system_seconds() == 0, reason="the kernel does not tell how busy it is")
def test_a_process_that_computes_beside_is_seen(monkeypatch) -> None:
    monkeypatch.setattr(quiet, "LOOK_SECONDS", 0.4)
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        found = look(1)
        assert process_seconds(spinning.pid) > 0.1
    finally:
        spinning.kill()
        spinning.wait()
    assert found.others > 0.5
    assert "cores busy" in found.fault
    assert 0.2 < found.slowdown < 5


def test_what_counts_as_quiet() -> None:
    assert Quiet(0.02, 1.05).fault == ""
    assert Quiet(0.5, 1.0).fault == "other processes keep 0.5 cores busy"
    assert Quiet(0.0, 1.6).fault == "a core is 1.60 x slower when all of them work"


def test_a_process_that_is_gone_counts_nothing() -> None:
    assert process_seconds(2**22 + 1) == 0


def test_what_a_process_waited_for_is_its_own() -> None:
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))']); "
        "print(); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = process_seconds(process.pid)
        process.communicate()
    assert seconds > 0.1  # starting Python twice takes less
