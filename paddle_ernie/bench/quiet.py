"""Whether the machine has anything else to do: a busy one slows both sides, and not alike.

Two tests. Nobody else computes: the kernel's count of busy time stands still while we sleep. And
the cores are whole: work on all of them at once takes as long as on one (a virtual machine whose
host is busy, or two threads of one core, fail here only).
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE_FIELDS = (3, 4)  # idle, iowait
GUEST_FIELDS = (8, 9)  # counted in user and nice as well
LOOK_SECONDS = 1.0
MAX_OTHERS = 0.1  # cores; a desktop at rest, a monitoring agent
MAX_SLOWDOWN = 1.15
SPIN_SECONDS = 0.4
ROUND = 20_000


@dataclass(frozen=True)
class Quiet:
    """How quiet it is."""

    others: float
    """Cores that other processes keep busy."""
    slowdown: float
    """Of a core's work when all cores work."""

    @property
    def fault(self) -> str:
        """What is wrong, or nothing."""
        if self.others > MAX_OTHERS:
            return f"other processes keep {self.others:.1f} cores busy"
        if self.slowdown > MAX_SLOWDOWN:
            return f"a core is {self.slowdown:.2f} x slower when all of them work"
        return ""


def look(threads: int) -> Quiet:
    """Measure; takes about two seconds."""
    before = system_seconds()
    time.sleep(LOOK_SECONDS)
    others = (system_seconds() - before) / LOOK_SECONDS
    return Quiet(others, min(_rates(1)) / min(_rates(threads)))


def _rates(processes: int) -> list[float]:
    """Work per second of each of some processes that compute at the same time."""
    command = [sys.executable, __file__]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    return [float(process.communicate()[0]) for process in running]


def spin() -> float:
    """Rounds of some pure Python per second, over a fixed time."""
    rounds, total, started = 0, 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < SPIN_SECONDS:
        for number in range(ROUND):
            total += number & 3
        rounds += 1
    return rounds / taken


def system_seconds() -> float:
    """Time that all cores have been busy since the machine started; 0 where it is not told."""
    try:
        ticks = [int(word) for word in STAT.read_text().partition("\n")[0].split()[1:]]
    except (OSError, ValueError):
        return 0.0
    busy = sum(value for at, value in enumerate(ticks) if at not in IDLE_FIELDS + GUEST_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """Processor time of a process, its threads and its ended children (compilers)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it is not told
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.stdout.write(f"{spin()}\n")
