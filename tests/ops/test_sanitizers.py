"""The operators' tests once more, on a library compiled with the address and undefined sanitizers.

    PADDLE_ERNIE_OPS_FLAGS -> a library of its own in the cache
    -> pytest tests/ops in a process that starts with the sanitizers' libraries -> no report

A library that steps over its buffers is run the same way: a harness that sees nothing would fail.
"""

import os
import subprocess
import sys
from pathlib import Path

import paddle
import pytest

from paddle_ernie.ops import build, library

ROOT = Path(__file__).resolve().parents[2]
# vptr: Paddle's type-erased attributes cast downward in a way that it takes for an error.
FLAGS = (
    "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g1", "-O1",
)  # fmt: skip
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
REPORTS = ("ERROR: AddressSanitizer", "runtime error:")
SLOW_SECONDS = 3600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not library.loaded(), reason="the operators are not compiled here"),
]


def runtime(name: str) -> str:
    """The compiler's own copy of a run-time library; its bare name if it has none."""
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def has_sanitizers() -> None:
    if not all(os.path.isabs(runtime(name)) for name in RUNTIMES):
        pytest.skip("this g++ comes without the sanitizers' libraries")


def run(*command: str) -> tuple["subprocess.CompletedProcess[str]", str]:
    """The finished process, and what it wrote from a sanitizer's first report on."""
    options = "print_stacktrace=1:exitcode=99"
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=SLOW_SECONDS,
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(runtime(name) for name in RUNTIMES),
            # Paddle opens MKL by name: an intercepted dlopen does not look in Paddle's folder.
            "LD_LIBRARY_PATH": paddle.sysconfig.get_lib(),
            # Leaks, and new that meets free, are Paddle's and Python's own affair.
            "ASAN_OPTIONS": f"detect_leaks=0:alloc_dealloc_mismatch=0:{options}",
            "UBSAN_OPTIONS": options,
            "PADDLE_ERNIE_OPS": "on",
            "PADDLE_ERNIE_OPS_FLAGS": " ".join(FLAGS),
        },
    )  # fmt: skip
    lines = done.stderr.splitlines()
    at = next((i for i, line in enumerate(lines) if any(r in line for r in REPORTS)), len(lines))
    return done, "\n".join(lines[at:])


BROKEN = """
#include "workspace.h"
extern "C" {
void write_past(float* x, int n) { for (int i = 0; i < n; ++i) x[i] = i; }
int shift(int n) { return 1u << n ? 1 : 0; }
void workspace_past(int first, int touched) {
  paddle_ernie::Workspace space;
  space.get<float>(4096);  // the room is there, but the next call does not ask for it
  float* x = space.get<float>(first);
  for (int i = 0; i < touched; ++i) x[i] = i;
}
}
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "workspace.h").write_text((build.SOURCE_DIR / "workspace.h").read_text())
    (folder / "broken.cc").write_text(BROKEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_ERNIE_CACHE", str(folder / "cache"))
        return build.build(folder, flags=FLAGS)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("write_past(buffer, 16)", ""),
        ("write_past(buffer, 17)", "heap-buffer-overflow"),
        ("workspace_past(100, 100)", ""),
        ("workspace_past(100, 117)", "use-after-poison"),
        ("shift(31)", ""),
        ("shift(40)", "shift exponent 40 is too large"),
    ],
)
def test_faults_are_reported(broken: Path, call: str, complaint: str) -> None:
    program = (
        "import ctypes; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "buffer = ctypes.c_void_p(libc.malloc(64))\n"
        f"ctypes.CDLL({str(broken)!r}).{call}"
    )
    done, report = run("-c", program)
    # Undefined behaviour is reported and goes on, so that one run shows all of it.
    assert done.returncode == (99 if "AddressSanitizer" in report else 0), done.stderr
    assert complaint in report
    assert bool(report) == bool(complaint)


def test_operators_touch_only_their_memory() -> None:
    done, report = run(
        # -s: what is written in the process's last moment must not end in pytest's own file.
        "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/ops",
        # The compiler itself is no operator, and runs the slower for its preloaded libraries.
        *(f"--ignore=tests/ops/test_{name}.py" for name in ("build", "compiler", "cuda")),
    )  # fmt: skip
    assert report == ""
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
