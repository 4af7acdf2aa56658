"""Files and folders are whole or absent, also when a write fails or the process is killed."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_ernie.utils import files

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_text_and_json_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    files.write_json(path, {"b": "é", "a": [1, None]})
    assert json.loads(path.read_text()) == {"a": [1, None], "b": "é"}
    files.write_text(path, "second")
    assert path.read_text() == "second"
    assert names(tmp_path) == {"new", "new/a.json"}
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(temporary))

    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(path, fail)
    assert path.read_text() == "old" and names(tmp_path) == {"a"}


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for version in ("one", "two"):
        with files.directory_atomic(target) as temporary:
            (temporary / "sub").mkdir()
            (temporary / "sub" / version).write_text(version)
            assert temporary.parent == target.parent
    assert names(tmp_path) == {"model", "model/sub", "model/sub/two"}


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with files.directory_atomic(target) as temporary:
        (temporary / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), files.directory_atomic(target) as temporary:
        (temporary / "b").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == {"model", "model/a"}


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    """A child replaces a file over and over; whenever it is killed, the file is one version."""
    path = tmp_path / "a"
    program = (
        "import sys; from pathlib import Path; from paddle_ernie.utils.files import write_text\n"
        "i = 0\n"
        "while True:\n"
        "    i += 1; write_text(Path(sys.argv[1]), str(i % 10) * 200_000)\n"
    )
    for delay in (0.03, 0.05, 0.08):
        path.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT)
        limit = time.monotonic() + 30
        while not path.exists() and time.monotonic() < limit:
            time.sleep(0.005)
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        text = path.read_text()
        assert len(text) == 200_000 and len(set(text)) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.binary(max_size=100), st.integers(0, 3))
def test_sha256(tmp_path: Path, content: bytes, chunks: int) -> None:
    content += b"x" * (chunks * files.HASH_CHUNK_BYTES // 2)
    path = tmp_path / "a"
    path.write_bytes(content)
    assert files.sha256(path) == hashlib.sha256(content).hexdigest()


def test_replacing_a_folder_without_predecessor(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a").write_text("a")
    files.replace_directory(tmp_path / "new", tmp_path / "target")
    assert names(tmp_path) == {"target", "target/a"}
    assert os.path.isdir(tmp_path / "target")
