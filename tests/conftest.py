"""Fixtures that several test folders use."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
TOOL_TIMEOUT_SECONDS = 300

RunTool = Callable[..., "subprocess.CompletedProcess[str]"]

# Generated cases share cores with other work: their number is bounded, their time is not.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture
def write_yaml(tmp_path: Path) -> Callable[..., Path]:
    """`write_yaml(text, name="config.yaml")`: a file in this test's folder."""

    def write(text: str, name: str = "config.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def run_tool(tmp_path: Path) -> RunTool:
    """`run_tool("train.py", "-c", path)`: a tool in its own process, from a folder elsewhere."""

    def run(
        tool: str, *arguments: object, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(ROOT / "tools" / tool), *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_SECONDS,
            check=False,
        )

    return run
