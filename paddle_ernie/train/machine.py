"""What the machine does during a run: memory of this process, and the peak speed of its cores.

Called by the metrics callback, the summary and the benchmarks. Reads Linux's /proc; without it,
both memory figures are the peak that `getrusage` knows.
"""

import ctypes
import gc
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

import paddle

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
MATMUL_SIZE = 1536  # 9 MB a matrix in fp32: larger than a core's own caches, 0.1 s on one core
MATMUL_REPEATS = 3
KILO = 1024


def resident_bytes() -> int:
    """Memory this process occupies now."""
    return _status("VmRSS") or _rusage_peak()


def peak_resident_bytes() -> int:
    """Most memory this process ever occupied.

    Not from `getrusage`: there a process started by a larger one inherits that one's peak.
    """
    return _status("VmHWM") or _rusage_peak()


def forget_peak() -> None:
    """Count the peak from now on: a stage of a pipeline is not charged with an earlier one's.

    What that one is done with goes back to the system first. Layers refer to each other in cycles,
    and the C library keeps the pages of freed arrays: 340 of 710 MB after a run of the quickstart's
    pre-training, which would lie under the next stage's own memory.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    # The kernel's documented way; where it is refused the peak stays that of the whole process.
    with suppress(OSError):
        CLEAR_REFS.write_text("5")


def measure_peak_gflops() -> float:
    """Best of a few large fp32 matrix products, in GFLOP/s; takes about a second at most."""
    left = paddle.ones([MATMUL_SIZE, MATMUL_SIZE])
    paddle.matmul(left, left)[0, 0].item()  # starts the threads, touches the pages
    seconds = []
    for _ in range(MATMUL_REPEATS):
        started = time.perf_counter()
        paddle.matmul(left, left)[0, 0].item()
        seconds.append(time.perf_counter() - started)
    return 2 * MATMUL_SIZE**3 / min(seconds) / 1e9


def _status(field: str) -> int | None:
    if not STATUS.exists():
        return None
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * KILO
    return None


def _rusage_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KILO
