"""The vector functions that kernels are made of, one by one (vec_probe.cc calls them)."""

import os
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

from paddle_ernie.ops.build import SOURCE_DIR
from paddle_ernie.ops.compiler import CXX_FLAGS
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running

WIDTHS = {PORTABLE: 4, AVX2: 8, AVX512: 16}
levels = pytest.mark.parametrize("level", list(WIDTHS))


@pytest.fixture(scope="module")
def probe(tmp_path_factory, request):
    """probe(function, level, x): the function's values, from a program compiled here."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("probe") / "vec_probe"
    flags = [flag for flag in CXX_FLAGS if flag != "-fopenmp"]
    source = request.path.parent / "vec_probe.cc"
    includes = ["-I", SOURCE_DIR, "-I", source.parent]
    subprocess.run([compiler, *flags, *includes, source, "-o", program], check=True)

    def run(function: str, level: int, x: np.ndarray) -> np.ndarray:
        with running(level=level):  # skips if the processor lacks it
            done = subprocess.run(
                [program, function, str(level)],
                input=x.astype(np.float32).tobytes(),
                capture_output=True,
                check=True,
            )
        return np.frombuffer(done.stdout, np.float32)

    return run


def ulps(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error in units of the last place of the exact value (2^-149 where it is subnormal)."""
    return np.abs(actual - exact) / np.spacing(np.abs(exact).astype(np.float32))


@levels
def test_exp_is_accurate_down_to_subnormal_results(probe, level):
    x = np.linspace(-103.9, 88.72, 300_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert ulps(probe("exp", level, x), exact).max() < (1.5 if level != PORTABLE else 2.5)


@levels
def test_exp_at_its_ends(probe, level):
    x = [0.0, -0.0, -104.5, -1e30, -np.inf, 88.73, 89.5, 1e30, np.inf, np.nan, -np.nan]
    expected = [1, 1, 0, 0, 0, np.inf, np.inf, np.inf, np.inf, np.nan, np.nan]
    np.testing.assert_array_equal(probe("exp", level, np.array(x)), np.array(expected, np.float32))


@levels
def test_sigmoid(probe, level):
    x = np.linspace(-87, 87, 300_001, dtype=np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert ulps(probe("sigmoid", level, x), exact).max() < 4
    special = probe("sigmoid", level, np.array([-np.inf, -1e30, np.inf, 1e30, 0, np.nan]))
    np.testing.assert_array_equal(special, [0, 0, 1, 1, 0.5, np.nan])


@levels
def test_rounding(probe, level, rng):
    x = rng.integers(0, 1 << 32, 200_001, dtype=np.uint32).view(np.float32)
    x[:100_000] = np.exp2(rng.uniform(-12, 10, 100_000)) * rng.choice([-1, 1], 100_000)
    with np.errstate(over="ignore", invalid="ignore"):
        bf16 = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        e4m3 = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(probe("round_bf16", level, x), bf16)
    np.testing.assert_array_equal(probe("round_e4m3", level, x), e4m3)


@levels
def test_sums_go_pairwise(probe, level, rng):
    x = rng.standard_normal((50, WIDTHS[level])).astype(np.float32)
    expected = x
    while expected.shape[1] > 1:
        half = expected.shape[1] // 2
        expected = expected[:, :half] + expected[:, half:]
    actual = probe("sum", level, x.reshape(-1)).reshape(x.shape)
    assert np.array_equal(actual, np.broadcast_to(expected, x.shape))
