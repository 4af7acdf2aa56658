"""One process at a time trains in a folder, and starting over forgets the run but not the cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.train.run_folder import RunFolder
from paddle_ernie.utils.errors import InputError

HOLD = """
import sys
from pathlib import Path
from paddle_ernie.train.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match="another process is training"), folder.lock():
        pass
    holder.kill()
    holder.communicate()
    with folder.lock():
        pass


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match=r"run\.output_dir"), RunFolder(tmp_path / "run").lock():
        pass


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path in (".model.ab12", ".model.old.cd34/model", "checkpoints/.step-00000120.abc"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "model.safetensors").write_bytes(b"half")
    (folder.checkpoints / "step-00000100").mkdir()
    folder.model.mkdir()
    folder.remove_unfinished()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000100"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model"]


@pytest.mark.parametrize("text", ["", "{", "[3]", "7"])
def test_a_summary_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text(text)
    assert folder.read_summary() is None


def test_clear_keeps_the_token_cache(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.checkpoints / "step-00000001", folder.model, tmp_path / "cache"):
        path.mkdir(parents=True)
    folder.metrics.write_text("{}\n")
    folder.summary.write_text('{"steps": 3}')
    assert folder.read_summary() == {"steps": 3}
    folder.clear()
    assert folder.read_summary() is None
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    folder.clear()  # nothing there: nothing to do
