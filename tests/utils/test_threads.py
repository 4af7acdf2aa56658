"""Threads: the configuration's number, else the shell's, else every core this process has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ernie.utils.threads import available_cores, configure_threads, quota_cores

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("configured", "shell", "expected"),
    [
        (3, {}, 3),
        (3, {"OMP_NUM_THREADS": "1"}, 3),
        (None, {"OMP_NUM_THREADS": "5"}, 5),
        (None, {}, available_cores()),
        (None, {"OMP_NUM_THREADS": ""}, available_cores()),
        (None, {"OMP_NUM_THREADS": "0"}, available_cores()),
        (None, {"OMP_NUM_THREADS": "many"}, available_cores()),
    ],
)
def test_who_decides(configured: int | None, shell: dict[str, str], expected: int) -> None:
    environment = dict(shell)
    assert configure_threads(configured, environment) == expected
    assert environment["OMP_NUM_THREADS"] == str(expected)


def test_what_the_user_tuned_stays() -> None:
    environment = {"MKL_DEBUG_CPU_TYPE": "4", "GLOG_minloglevel": "0"}
    configure_threads(1, environment)
    assert environment == {**environment, "MKL_DEBUG_CPU_TYPE": "4", "GLOG_minloglevel": "0"}


def test_waiting_threads_soon_give_their_core_away() -> None:
    environment: dict[str, str] = {}
    configure_threads(2, environment)
    assert environment["KMP_BLOCKTIME"] == "1"
    assert environment["GOMP_SPINCOUNT"] == "1000"


@pytest.mark.parametrize("chosen", ["KMP_BLOCKTIME", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_how_threads_wait_is_the_users_choice(chosen: str) -> None:
    environment = {chosen: "passive"}
    configure_threads(2, environment)
    assert environment[chosen] == "passive"
    waits = {"KMP_BLOCKTIME", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environment)
    assert waits == ({chosen} if chosen == "OMP_WAIT_POLICY" else waits | {chosen})


def test_amd_cpus_get_mkls_fast_kernels() -> None:
    environment: dict[str, str] = {}
    configure_threads(1, environment)
    is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    assert environment.get("MKL_DEBUG_CPU_TYPE") == ("5" if is_amd else None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_the_affinity_mask_counts() -> None:
    program = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from paddle_ernie.utils.threads import available_cores; print(available_cores())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "1", shown.stderr


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("150000 100000", 1),
        ("400000 100000", 4),
        ("50000 100000", 1),
        ("", None),
        ("nonsense here", None),
        ("1 2 3", None),
    ],
)
def test_container_quota(tmp_path: Path, text: str, cores: int | None) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert quota_cores(path) == cores


def test_no_container() -> None:
    assert quota_cores(Path("/nonexistent/cpu.max")) is None
