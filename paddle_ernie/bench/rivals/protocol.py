"""What both sides of a comparison share: requests over pipes, and one stopwatch for both.

    driver --{"do": "op", ...}--> stdin   stdout --{"best": 0.0012, "median": 0.0013, ...}--> driver

One JSON object a line. Imports the standard library only: the rival's environment has no more.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WARMUP_CALLS = 2  # first calls allocate memory, pack weights, start threads
MAX_ERROR_CHARS = 300
SHORTEST_SAMPLE_SECONDS = 5e-4  # shorter calls are timed several at a time


def serve(handlers, hello):
    """Answer requests until stdin closes; `handlers` maps `do` to a function of the request."""
    _end_with_parent()
    _limit_memory()
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(message):
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    say(hello)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(handlers[request["do"]](request))
        except NotImplementedError as error:  # a gap in the table, not a failure
            say({"unavailable": str(error)})
        except Exception as error:  # the process's boundary: the driver decides what it means
            traceback.print_exc()
            text = str(error).strip().partition("\n")[0][:MAX_ERROR_CHARS]
            say({"error": f"{type(error).__name__}: {text}"})


def _end_with_parent():
    """A stopped process would outlive a driver that is killed, and keep its memory."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory():
    """What does not fit fails with a message, instead of the machine going down with it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        resource.setrlimit(resource.RLIMIT_DATA, (free * 1024, free * 1024))


def sample(work, seconds, prepare=None):
    """Time `work()` again and again for about `seconds`: best and median of a call.

    `prepare()` runs before each call and is not timed.
    """
    for _ in range(WARMUP_CALLS):
        once = _time(work, prepare, 1)
    calls = 1 if prepare else max(1, round(SHORTEST_SAMPLE_SECONDS / max(once, 1e-7)))
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < 3 or time.perf_counter() < end:
        samples.append(_time(work, prepare, calls))
    return summary(samples)


def _time(work, prepare, calls):
    if prepare:
        prepare()
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls


def summary(samples):
    """What an answer says about a list of seconds."""
    return {"best": min(samples), "median": statistics.median(samples), "samples": len(samples)}


def peak_bytes():
    """Most memory this process ever occupied."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
