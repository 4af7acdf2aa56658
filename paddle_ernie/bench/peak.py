"""How fast this machine's arithmetic units are at most, by a small C++ program (peak.cc)."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paddle_ernie.utils.threads import CPU_INFO

SOURCE = Path(__file__).with_name("peak.cc")
BF16_DOT_PER_CORE = 234.0
"""GFLOP/s of the bf16 dot product of a current core with AVX-512-BF16; the yardstick of goals."""


@dataclass(frozen=True)
class Peak:
    """GFLOP/s on all threads; 0 for what the processor does not have."""

    fp32: float
    """Fused multiply-adds."""
    bf16_dot: float
    """AVX-512-BF16."""
    bf16_tiles: float
    """AMX."""

    def of(self, format_name: str) -> float:
        """The fastest unit that serves a format. fp8 values are computed with as bf16."""
        return self.fp32 if format_name == "fp32" else max(self.bf16_dot, self.bf16_tiles)


def measure_peak(threads: int) -> Peak | None:
    """Compile and run; None without a compiler, or on another architecture."""
    with tempfile.TemporaryDirectory(prefix="peak-") as folder:
        program = Path(folder) / "peak"
        amx = f"-DAMX_SUPPORTED={int('amx_bf16' in _cpu_flags())}"
        compiler = os.environ.get("CXX", "g++")
        command = [compiler, "-O3", "-std=c++17", "-fopenmp", amx, str(SOURCE), "-o", str(program)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        try:
            subprocess.run(command, check=True, capture_output=True)
            done = subprocess.run([program], check=True, capture_output=True, env=environment)
        except (OSError, subprocess.CalledProcessError):
            return None
    return Peak(**json.loads(done.stdout))


def _cpu_flags() -> str:
    try:
        return CPU_INFO.read_text()
    except OSError:
        return ""
