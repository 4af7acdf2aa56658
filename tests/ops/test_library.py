"""Loading the operators or doing without, instruction sets, threads, fingerprints."""

import ctypes
import logging
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_ernie.ops import build, library
from paddle_ernie.ops.compiler import CannotBuildError
from paddle_ernie.ops.rms_norm import rms_norm
from paddle_ernie.utils.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CSRC = build.SOURCE_DIR

needs_library = pytest.mark.skipif(
    not library.loaded(), reason="the operators are not compiled on this machine"
)


@pytest.fixture
def first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """As in a process that has not loaded the library, with an empty cache and no compiler."""
    monkeypatch.setattr(library, "library_path", cache(library.library_path.__wrapped__))
    monkeypatch.setenv("PADDLE_ERNIE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("PADDLE_ERNIE_OPS", raising=False)
    return monkeypatch


@needs_library
def test_which_tensors_the_kernels_take() -> None:
    assert library.available(paddle.zeros([2]))
    assert not library.available(paddle.zeros([2], dtype="float64"))
    assert not library.available(paddle.zeros([2], dtype="int32"))


@needs_library
def test_call_returns_one_tensor_or_several() -> None:
    x, weight = paddle.ones([2, 3]), paddle.ones([3])
    assert len(library.call("rms_norm_forward", x, weight, 1e-5)) == 2
    assert isinstance(library.call("runtime", x, -1, -1), paddle.Tensor)


def test_without_a_compiler_one_warning_and_the_plain_bodies(
    first_use: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library.logger.addHandler(caplog.handler)
    try:
        x = paddle.to_tensor(np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))
        weight = paddle.full([8], 2.0)
        results = [rms_norm(x, weight, 1e-5).numpy() for _ in range(3)]
    finally:
        library.logger.removeHandler(caplog.handler)
    texts = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    assert len(texts) == 1 and "apt-get install g++" in texts.pop()
    wide = x.numpy().astype(np.float64)
    expected = 2 * wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)
    assert library.isa() == "reference"
    assert library.threads() == 1
    assert library.fingerprint("fp32") == f"paddle-{paddle.__version__}/reference/fp32"
    library.set_threads(3)  # nothing to set, nothing to complain of
    with pytest.raises(InputError, match="the operators are not compiled"):
        library.set_isa("avx2")


def test_off_needs_no_compiler_and_warns_of_nothing(
    first_use: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first_use.setenv("PADDLE_ERNIE_OPS", "off")
    library.logger.addHandler(caplog.handler)
    try:
        assert not library.loaded()
    finally:
        library.logger.removeHandler(caplog.handler)
    assert caplog.records == []


def test_on_insists(first_use: pytest.MonkeyPatch) -> None:
    first_use.setenv("PADDLE_ERNIE_OPS", "on")
    with pytest.raises(CannotBuildError, match=r"install g\+\+"):
        library.loaded()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PADDLE_ERNIE_OPS", "maybe", "'maybe': expected one of auto, on, off"),
        ("PADDLE_ERNIE_ISA", "sse9", "'sse9': expected one of portable, avx2, avx512,"),
    ],
)
def test_a_switch_that_is_none(
    first_use: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    first_use.setenv(name, value)
    with pytest.raises(InputError, match=expected):
        library.loaded()


@pytest.mark.parametrize(
    ("environment", "level"),
    [({}, 4), ({"PADDLE_ERNIE_ISA": ""}, 4), ({"PADDLE_ERNIE_ISA": "AVX2"}, 1)],
)
def test_the_environment_caps_the_instruction_set(environment: dict[str, str], level: int) -> None:
    assert library._level_cap(environment) == level


@needs_library
def test_instruction_sets_can_be_lowered_and_raised_again() -> None:
    before = library.isa()
    with library.using(isa="portable", threads=3):
        assert (library.isa(), library.threads()) == ("portable", 3)
    assert library.isa() == before


@needs_library
def test_using_restores_after_an_error() -> None:
    before = library.isa(), library.threads()
    with pytest.raises(InputError), library.using(isa="portable", threads=0):
        pass
    assert (library.isa(), library.threads()) == before


@needs_library
def test_an_instruction_set_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = library._runtime()
    monkeypatch.setattr(library, "_runtime", lambda **_: runtime._replace(best_level=1))
    with pytest.raises(InputError, match=r"amx: this process has up to avx2"):
        library.set_isa("amx")


@needs_library
def test_kernels_refuse_a_level_the_processor_lacks() -> None:
    beyond = library._runtime().best_level + 1
    with pytest.raises(Exception, match="this processor lacks"):
        library.call("runtime", paddle.zeros([1]), -1, beyond)


def test_unknown_names_and_counts() -> None:
    with pytest.raises(InputError, match=r"'neon': expected one of portable, avx2"):
        library.set_isa("neon")
    with pytest.raises(InputError, match="operator threads: 0; expected 1 or more"):
        library.set_threads(0)


@needs_library
def test_fingerprint_tells_what_decides_bits() -> None:
    own = library.fingerprint("fp32")
    assert own == library.fingerprint("fp32")
    assert own != library.fingerprint("fp8")
    with library.using(threads=5):
        assert library.fingerprint("fp32") == own
    with library.using(isa="portable"):
        assert "/portable/" in library.fingerprint("fp32")


LOOPS = """
#include <atomic>
#include <cstring>
#include <stdexcept>
#include "parallel.h"
using namespace paddle_ernie;
extern "C" {
// How often each index was visited; returns whether pieces were of `grain` and on a grid.
int visit(long n, long grain, int count, int* visits) {
  set_threads(count);
  std::atomic<int> fine{1};
  parallel_for(n, grain, [&](long begin, long end) {
    if (begin % grain || (end - begin != grain && end != n)) fine = 0;
    for (long i = begin; i < end; ++i) ++visits[i];
  });
  return fine;
}
// The message that arrived, and how many pieces ran.
int failing(long n, int count, char* message) {
  set_threads(count);
  std::atomic<int> ran{0};
  try {
    parallel_for(n, 1, [&](long begin, long) {
      ++ran;
      if (begin == 3) throw std::runtime_error("piece 3");
    });
  } catch (const std::exception& error) { std::strcpy(message, error.what()); }
  return ran;
}
// A loop in a loop: inner pieces stay on their thread.
int nested(long n, int count) {
  set_threads(count);
  std::atomic<int> sum{0}, strays{0};
  parallel_for(n, 1, [&](long, long) {
    thread_local int depth = 0;
    ++depth;
    parallel_for(n, 1, [&](long, long) { ++sum; if (depth != 1) ++strays; });
    --depth;
  });
  return strays ? -1 : sum.load();
}
}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """parallel.h by itself."""
    folder = tmp_path_factory.mktemp("loops")
    for name in ("parallel.h", "parallel.cc"):
        (folder / name).write_text((CSRC / name).read_text())
    (folder / "loops.cc").write_text(LOOPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_ERNIE_CACHE", str(folder / "cache"))
        return ctypes.CDLL(str(build.build(folder)))


@needs_library
def test_every_index_once(loops: ctypes.CDLL) -> None:
    rng = random.Random(0)
    for _ in range(200):
        n, grain, count = rng.randrange(300), rng.randrange(1, 40), rng.randrange(1, 6)
        visits = np.zeros(n + 1, np.int32)
        pointer = ctypes.c_void_p(visits.ctypes.data)
        assert loops.visit(ctypes.c_long(n), ctypes.c_long(grain), count, pointer)
        np.testing.assert_array_equal(visits, [1] * n + [0])


@needs_library
@pytest.mark.parametrize("count", [1, 4])
def test_an_exception_reaches_the_caller(loops: ctypes.CDLL, count: int) -> None:
    message = ctypes.create_string_buffer(64)
    ran = loops.failing(ctypes.c_long(100_000), count, message)
    assert message.value == b"piece 3"
    assert ran < 100_000  # the rest was left out
    assert loops.nested(ctypes.c_long(5), 2) == 25  # and loops still work


@needs_library
def test_loops_within_loops_stay_on_their_thread(loops: ctypes.CDLL) -> None:
    assert loops.nested(ctypes.c_long(20), 3) == 400


@needs_library
def test_one_pool_of_threads_with_paddles_own_library() -> None:
    """Matrix products of MKL and our loops use the same threads where Paddle brings MKL's."""
    program = """
import os, paddle
from paddle_ernie.ops import library
def threads(): return len(os.listdir("/proc/self/task"))
a = paddle.randn([512, 512])
library.set_threads(2)
paddle.matmul(a, a)
before = threads()
library.call("rms_norm_forward", paddle.ones([4096, 64]), paddle.ones([64]), 1e-5)
print(threads() - before)
"""
    if not (Path(paddle.sysconfig.get_lib()) / "libiomp5.so").is_file():
        pytest.skip("this Paddle has no OpenMP library of its own")
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE"},
    )  # fmt: skip
    assert shown.stdout.strip() == "0", shown.stdout + shown.stderr
