"""Pythons of other environments, which hold what cannot live beside Paddle, and their scripts.

Each is a folder in the project's root, created as its requirements file says, or anywhere else if
an environment variable names its python. Tests are skipped, with the recipe, where there is none.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Environment:
    """One of them."""

    folder: str
    variable: str
    requirements: str
    modules: tuple[str, ...]
    """Imported to see whether it is complete."""

    def python(self) -> Path:
        """Its interpreter; skips the test if it is not there or lacks something."""
        named = os.environ.get(self.variable)
        python = Path(named) if named else ROOT / self.folder / "bin" / "python"
        if not python.is_file():
            pytest.skip(
                f"no {python}: create {self.folder} as {self.requirements} says, or set "
                f"{self.variable}"
            )
        probe = [python, "-c", f"import {', '.join(self.modules)}"]
        tried = subprocess.run(probe, capture_output=True, text=True, check=False)
        if tried.returncode:
            reason = tried.stderr.strip().splitlines()[-1]
            pytest.skip(f"{python}: {reason}; see {self.requirements}")
        return python

    def run(self, script: str, *arguments: object, **environment: str) -> None:
        """Run a script of this folder, which must succeed."""
        ran = subprocess.run(
            [self.python(), Path(__file__).with_name(script), *map(str, arguments)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": "",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


TRANSFORMERS = Environment(
    ".venv-interop",
    "PADDLE_ERNIE_INTEROP_PYTHON",
    "requirements-interop.txt",
    ("torch", "transformers", "accelerate", "gguf"),
)
VLLM = Environment(
    ".venv-vllm", "PADDLE_ERNIE_VLLM_PYTHON", "requirements-vllm.txt", ("torch", "vllm")
)
