"""Memory figures move when memory does; the measured peak is one a CPU or GPU can have."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle

from paddle_ernie.train.machine import (
    forget_peak,
    measure_peak_gflops,
    peak_resident_bytes,
    resident_bytes,
)


def test_resident_memory_follows_an_allocation() -> None:
    """In a process of its own: the compiled operators keep freed memory for the next tensor."""
    program = """
import numpy as np
from paddle_ernie.train.machine import peak_resident_bytes, resident_bytes
before = resident_bytes()
block = np.ones(100_000_000 // 8)
during = resident_bytes()
assert 80e6 < during - before < 150e6
del block
assert resident_bytes() < during - 80e6
assert peak_resident_bytes() > 0.98 * during  # the kernel updates the two at other times
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_peak_of_a_new_process_is_its_own() -> None:
    block = np.ones(400_000_000 // 8)
    program = (
        "from paddle_ernie.train.machine import peak_resident_bytes as p, resident_bytes as r;"
        "print(p() / r())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert float(done.stdout.split()[-1]) < 1.5
    assert block[0] == 1


def test_a_forgotten_peak_takes_freed_memory_with_it() -> None:
    """Arrays too small to be mapped one by one, held by a cycle as a model's layers are."""
    holder: dict[str, object] = {"tensors": [paddle.ones([8000]) for _ in range(3000)]}
    holder["self"] = holder
    before = resident_bytes()
    del holder
    forget_peak()
    assert resident_bytes() < before - 80e6
    assert peak_resident_bytes() < before - 80e6


def test_peak_speed_is_plausible() -> None:
    assert 1 < measure_peak_gflops() < 1e7
