"""The whole server as a process of its own, the way tools/serve.py runs it, for tests."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psutil

from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.flags import make_worker

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import pickle, sys
from rich.console import Console
from paddle_ernie.serve.processes.run import serve
from paddle_ernie.utils.cli import run_main
from paddle_ernie.utils.logs import configure_logging
if __name__ == "__main__":
    configure_logging(Console(stderr=True))
    make_worker, settings = pickle.loads(bytes.fromhex(sys.argv[1]))
    sys.exit(run_main(lambda: serve(make_worker, settings)))
"""
START_SECONDS = 120
SMALL = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "num_pages": 120, "max_model_len": 512}


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen
    url: str
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "stderr.txt").read_text()

    def children(self) -> list[psutil.Process]:
        """Engine processes."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in family if "spawn_main" in " ".join(child.cmdline())]

    def metrics(self) -> dict[str, float]:
        """Samples without labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.removeprefix("fastdeploy:"): float(value) for name, value in pairs}

    def end(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(
    folder: Path, model_dir: Path, engine: dict | None = None, **settings
) -> Iterator[Server]:
    """A server of that model; killed with all its processes in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    worker = partial(make_worker, model_dir, EngineOptions(**{**SMALL, **(engine or {})}))
    port = free_port()
    options = {"port": port, "model_dir": model_dir, "access_log": folder / "access.jsonl"}
    given = pickle.dumps((worker, ServerSettings(**{**options, **settings})))
    program = folder / "server.py"  # a file: its processes import it again
    program.write_text(CODE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(program), given.hex()], cwd=ROOT, env=environment, stderr=errors
        )
    server = Server(process, f"http://127.0.0.1:{port}", folder)
    family = [psutil.Process(process.pid)]
    try:
        _wait_healthy(server)
        family += server.children()
        yield server
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(process.pid).children(recursive=True)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def _wait_healthy(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.process.poll() is None, server.log
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"not healthy after {START_SECONDS} s: {server.log}")
