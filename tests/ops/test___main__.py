"""`python -m paddle_ernie.ops`: building ahead, and what this machine uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.ops import library
from paddle_ernie.ops.__main__ import facts

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "paddle_ernie.ops", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.skipif(not library.loaded(), reason="the operators are not compiled on this machine")
def test_build_prints_the_library() -> None:
    shown = run("build")
    assert (shown.returncode, shown.stdout) == (0, f"{library.library_path()}\n"), shown.stderr


@pytest.mark.skipif(not library.loaded(), reason="the operators are not compiled on this machine")
def test_info_names_what_is_used() -> None:
    shown = run("info", PADDLE_ERNIE_ISA="portable", OMP_NUM_THREADS="3")
    rows = dict(line.split("  ", 1) for line in shown.stdout.splitlines())
    found = {name.strip(): value.strip() for name, value in rows.items()}
    assert found["instruction set"] == "portable"
    assert found["threads"] == "3"
    assert found["library"] == str(library.library_path())
    assert found["fingerprint"].endswith("/portable/fp32")


def test_info_without_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_path", lambda: None)
    found = dict(facts())
    assert found["instruction set"] == "reference"
    assert "plain NumPy bodies" in str(found["library"])


def test_a_wrong_switch_ends_with_a_message() -> None:
    shown = run("info", PADDLE_ERNIE_ISA="sse9")
    assert shown.returncode == 2
    assert "expected one of portable, avx2" in shown.stderr
    assert "Traceback" not in shown.stderr
