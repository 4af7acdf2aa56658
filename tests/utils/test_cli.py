"""Foreseeable errors become one message and an exit code; bugs keep their traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.utils.cli import run_main
from paddle_ernie.utils.errors import CheckpointError, ConfigError, Interrupted

ROOT = Path(__file__).resolve().parents[2]


def outcome(error: BaseException | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def work() -> None:
        if error is not None:
            raise error

    code = run_main(work)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (None, 0, ""),
        (ConfigError("x.yaml:3  [a] wrong"), 2, "error: x.yaml:3  [a] wrong\n"),
        (CheckpointError("altered"), 1, "error: altered\n"),
        (Interrupted("saved"), 130, "interrupted: saved\n"),
        (KeyboardInterrupt(), 130, "interrupted: stopped before anything was started\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), 1, "error: /a/b: No space left"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 1, "error: Disk quota exceeded"),
        (PermissionError(errno.EACCES, "Permission denied", b"/a"), 2, "error: /a: Permission"),
        (OSError(errno.EROFS, "Read-only file system", "a", None, "b"), 2, "error: b: Read-only"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", Path("/a")), 2, "error: /a: Not a d"),
        (MemoryError(), 1, "error: out of memory; lower train.micro_batch_size"),
    ],
)
def test_exit_code_and_message(
    error: BaseException | None, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found_code, found_text = outcome(error, capsys)
    assert found_code == code and found_text.startswith(text)
    assert "Traceback" not in found_text


def test_long_lines_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/very" * 60
    assert outcome(ConfigError(f"{path}: missing"), capsys)[1] == f"error: {path}: missing\n"


def test_a_message_of_any_length_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = outcome(ConfigError("first " + "x" * 9000 + " last"), capsys)[1]
    assert text.startswith("error: first x") and text.endswith("x last\n") and " [...] " in text
    assert len(text) < 80 * 32


@pytest.mark.parametrize("error", [ValueError("bug"), FileNotFoundError(errno.ENOENT, "x", "y")])
def test_bugs_pass_through(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        run_main(work)


def test_the_functions_own_code_is_returned() -> None:
    assert run_main(lambda: 7) == 7


def test_a_closed_pipe_is_no_traceback() -> None:
    program = (
        "import sys; from paddle_ernie.utils.cli import run_main\n"
        "sys.exit(run_main(lambda: print('line\\n' * 100_000)))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (child.returncode, child.stderr) == (1, "")
