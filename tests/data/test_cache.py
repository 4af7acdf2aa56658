"""The builders' lock, leftovers, keys, and a disk that cannot be written."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddle_ernie.data.cache import Cache, digest
from paddle_ernie.utils.errors import InputError, Interrupted, TrainingError

ROOT = Path(__file__).resolve().parents[2]


def never() -> None:
    """A check that never asks for a stop."""


def test_keys_see_borders_and_order() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) != digest([2, 1])
    assert digest(b"x") != digest("x")


def test_leftovers_of_killed_builders_are_removed(tmp_path: Path) -> None:
    for name in (".scratch.dead", "tokens/.key.dead", "prepared/.key.old.dead", "tokens/key"):
        (tmp_path / name).mkdir(parents=True)
    with Cache(tmp_path).building(never) as scratch:
        (scratch / "file").write_text("x")
        assert not (tmp_path / ".scratch.dead").exists()
    left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert left == [".lock", "prepared", "tokens", "tokens/key"]


def test_builder_waits_for_another_and_takes_over_when_it_dies(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from paddle_ernie.data.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).building(lambda: None):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        waited = []

        def kill_it() -> None:
            waited.append(time.monotonic())
            if len(waited) == 2:
                other.kill()

        with Cache(tmp_path).building(kill_it):
            assert len(waited) >= 2


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("stop")

    with (
        Cache(tmp_path).building(never),
        pytest.raises(Interrupted),
        Cache(tmp_path).building(stop),
    ):
        pass


def test_full_disk_is_explained(tmp_path: Path) -> None:
    with (
        pytest.raises(TrainingError, match=r"the disk is full \(\d+ MB free\).*data.cache_dir"),
        Cache(tmp_path).building(never),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"cannot be written .*set data.cache_dir"),
        Cache(tmp_path / "file" / "cache").building(never),
    ):
        pass


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError), Cache(tmp_path).building(never):
        raise TimeoutError(errno.ETIMEDOUT, "slow")
