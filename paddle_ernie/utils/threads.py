"""How many threads tensor operations use; set before Paddle is imported, which reads it once."""

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

logger = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
MKL_AVX2 = "5"  # MKL takes slow generic kernels on AMD unless told: 2.5 x in fp32 products (Zen)
GLOG_ERRORS_ONLY = "2"
# How long OpenMP's threads stay awake for the next loop. Within a training step loops follow each
# other within a millisecond. Intel's library waits 200 ms by default, burning the core of whatever
# else runs: two processes of two threads on two cores then did half of what they do with 1 ms.
INTEL_SPIN_MILLISECONDS = "1"
GCC_SPIN_ROUNDS = "1000"  # about 50 us; its default of 300,000 is 14 ms


def configure_threads(
    num_threads: int | None, environment: MutableMapping[str, str] = os.environ
) -> int:
    """Set up Paddle's environment and return the number of threads it will use.

    None takes OMP_NUM_THREADS if it is set, else every core. Variables the user has set to tune
    MKL, OpenMP or logging stay as they are. Call it before the first `import paddle`.
    """
    threads = num_threads or _requested(environment) or available_cores()
    environment["OMP_NUM_THREADS"] = str(threads)
    environment.setdefault("GLOG_minloglevel", GLOG_ERRORS_ONLY)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("KMP_BLOCKTIME", INTEL_SPIN_MILLISECONDS)
        environment.setdefault("GOMP_SPINCOUNT", GCC_SPIN_ROUNDS)
    if "AuthenticAMD" in _cpu_info():
        environment.setdefault("MKL_DEBUG_CPU_TYPE", MKL_AVX2)
    return threads


def available_cores() -> int:
    """Cores this process may run on: its affinity mask, and a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, quota_cores(CGROUP_QUOTA) or cores or 1))


def quota_cores(path: Path) -> int | None:
    """Whole cores of a cgroup v2 `cpu.max` file ("150000 100000" is 1.5, so 1); None: no limit."""
    try:
        quota, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    if not quota.isdecimal() or not period.isdecimal():
        return None
    return max(1, int(quota) // int(period))


def _requested(environment: MutableMapping[str, str]) -> int | None:
    text = environment.get("OMP_NUM_THREADS", "").strip()
    if not text:
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    logger.warning("OMP_NUM_THREADS=%r is not a number of threads; every core is used", text)
    return None


def _cpu_info() -> str:
    try:
        return CPU_INFO.read_text()
    except OSError:  # not Linux: Paddle's defaults stand
        return ""


def cpu_model() -> str:
    """The processor's name, for benchmark files; empty where the system does not tell."""
    lines = (line.partition(":") for line in _cpu_info().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
