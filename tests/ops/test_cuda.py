"""The CUDA kernels: compiled for Hopper where nvcc is, run on the CPU by an emulator everywhere.

`cuda_emulator/emulator.h` stands in for CUDA's headers and for Hopper's instructions. It follows
their documentation; that the documentation is followed by a GPU, only a GPU can show.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from paddle_ernie.ops import build
from paddle_ernie.ops.compiler import CannotBuildError, compile_flags

CUDA = build.SOURCE_DIR.parent / "cuda"
EMULATOR = Path(__file__).parent / "cuda_emulator" / "emulator.h"
STAND_INS = ("cuda_runtime.h", "cuda_bf16.h", "cuda_fp8.h", "hopper.cuh")
BLOCK = 128

needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="no nvcc here: the CUDA sources cannot be compiled"
)


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "instructions"),
    [
        ("fp8_quantise.cu", ["cvt.rn.satfinite.e4m3x2"]),
        ("fp8_gemm_sm90.cu", ["wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"]),
        (
            "grouped_gemm_sm90.cu",
            [
                "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3",
                "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
            ],
        ),
    ],
)
def test_compiles_for_hopper(source: str, instructions: list[str], tmp_path: Path) -> None:
    """To machine code (the assembler checks what is inline), keeping the PTX to look into."""
    done = subprocess.run(
        [
            "nvcc", "-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-Xptxas",
            "-v,-warn-spills", "--keep", "--keep-dir", str(tmp_path),
            "-c", str(CUDA / source), "-o", str(tmp_path / "out.o"),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.o").stat().st_size > 0
    ptx = (tmp_path / source).with_suffix(".ptx").read_text()
    assert [name for name in instructions if name not in ptx] == []
    # Spilled accumulators, or products that wait for each other, would cost most of the speed.
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    assert not re.search(r"[1-9]\d* bytes spill", done.stderr)
    assert "serialized" not in done.stderr


@needs_nvcc
@pytest.mark.slow
def test_bindings_fit_paddles_headers() -> None:
    """Parsed only: this machine's Paddle may be one without CUDA."""
    shown = subprocess.run(["nvcc", "--dryrun", "-c", "x.cu"], capture_output=True, text=True)
    headers = re.findall(r'"-I([^"]+)"', shown.stderr)
    assert headers, shown.stderr
    folders = [f"{header}{inner}" for header in headers for inner in ("", "/cccl")]
    done = subprocess.run(
        [
            "g++", *compile_flags(["-fsyntax-only", "-DPADDLE_WITH_CUDA"]),
            *(f"-I{folder}" for folder in folders), str(CUDA / "bindings.cc"),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def emulated(source: str) -> str:
    """The launch syntax as a call; dynamic shared memory is the emulator's."""
    source = source.replace("extern __shared__ uint8_t shared[];", "")
    return re.sub(
        r"(\w+)<<<(.*?), kThreads,.*?>>>\((.*?)\);",
        r"launch(\2, kThreads, [&] { \1(\3); });",
        source,
        flags=re.DOTALL,
    )


ENTRIES = """
using namespace paddle_ernie::cuda;
extern "C" {
int rows(const float* x, int64_t M, int64_t K, int power, uint8_t* codes, float* scales) {
  return quantise_rows(x, M, K, power, codes, scales, nullptr);
}
int blocks(const float* w, int64_t E, int64_t R, int64_t C, int power, int transposed,
           uint8_t* codes, float* scales) {
  return quantise_blocks(w, E, R, C, power, transposed, codes, scales, nullptr);
}
int gemm(const uint8_t* a, const float* sa, const uint8_t* b, const float* sb, int64_t M, int64_t N,
         int64_t K, float* c) {
  return fp8_gemm(a, sa, b, sb, M, N, K, c, nullptr);
}
int grouped_fp8(const uint8_t* a, const float* sa, const uint8_t* b, const float* sb,
                const int64_t* offsets, int64_t E, int64_t M, int64_t N, int64_t K, float* c) {
  return grouped_gemm_fp8(a, sa, b, sb, offsets, E, M, N, K, c, nullptr);
}
int grouped_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, const int64_t* offsets, int64_t E,
                 int64_t M, int64_t N, int64_t K, __nv_bfloat16* c) {
  return grouped_gemm_bf16(a, b, offsets, E, M, N, K, c, nullptr);
}
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("emulated")
    shutil.copy(EMULATOR, folder)
    for name in STAND_INS:
        (folder / name).write_text('#include "emulator.h"\n')
    for name in ("kernels.cuh", "wgmma_tile.cuh"):
        shutil.copy(CUDA / name, folder)
    for path in CUDA.glob("*.cu"):
        (folder / f"{path.stem}.cc").write_text(emulated(path.read_text()))
    (folder / "entries.cc").write_text('#include "kernels.cuh"\n' + ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADDLE_ERNIE_CACHE", str(folder / "cache"))
        try:
            return ctypes.CDLL(str(build.build(folder, flags=["-O1", "-pthread", f"-I{folder}"])))
        except CannotBuildError as error:
            pytest.skip(str(error))


def run(function, *arguments) -> None:
    """Arrays by address, numbers as 64-bit integers."""
    converted = [
        ctypes.c_void_p(each.ctypes.data) if isinstance(each, np.ndarray) else ctypes.c_int64(each)
        for each in arguments
    ]
    assert function(*converted) == 0


def blocks_of(n: int) -> int:
    return -(-n // BLOCK)


def values(codes: np.ndarray) -> np.ndarray:
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def expected_codes(x: np.ndarray, rows: int, power: bool) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of blocks of `rows` x 128 of x [R, C], by the recipe's words."""
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    R, C = x.shape
    scales = np.ones((-(-R // rows), blocks_of(C)), np.float32)
    codes = np.zeros(x.shape, np.uint8)
    for i, j in np.ndindex(scales.shape):
        block = np.s_[i * rows : (i + 1) * rows, j * BLOCK : (j + 1) * BLOCK]
        sizes = np.abs(x[block])
        largest = np.max(sizes, where=~np.isnan(sizes), initial=np.float32(0))
        if largest > 0:
            scale = max(largest / np.float32(448), np.finfo(np.float32).tiny)
            scales[i, j] = 2.0 ** np.ceil(np.log2(np.float64(scale))) if power else scale
        with np.errstate(invalid="ignore"):
            quotient = np.clip(x[block] / scales[i, j], -448, 448)
        coded = quotient.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        codes[block] = np.where(np.isnan(quotient), 0x7F, coded)
    return codes, scales


def awkward(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers over many magnitudes, a block of zeros, NaN, an infinity."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)
    x = x.astype(np.float32)
    x.reshape(-1, shape[-1])[0, :BLOCK] = 0
    x.reshape(-1, shape[-1])[1, 3] = np.nan
    x.reshape(-1, shape[-1])[-1, -1] = np.inf
    return x


@pytest.mark.parametrize("power", [False, True])
def test_quantised_rows(kernels: ctypes.CDLL, power: bool) -> None:
    x = awkward(np.random.default_rng(0), (9, 300))
    codes, scales = np.empty(x.shape, np.uint8), np.empty((9, 3), np.float32)
    run(kernels.rows, x, *x.shape, power, codes, scales)
    wanted_codes, wanted_scales = expected_codes(x, 1, power)
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_array_equal(codes, wanted_codes)


@pytest.mark.parametrize("transposed", [False, True])
def test_quantised_blocks(kernels: ctypes.CDLL, transposed: bool) -> None:
    E, R, C = 2, 200, 130
    w = awkward(np.random.default_rng(1), (E, R, C))
    shape = (E, C, R) if transposed else (E, R, C)
    codes = np.empty(shape, np.uint8)
    scales = np.empty((E, blocks_of(shape[1]), blocks_of(shape[2])), np.float32)
    run(kernels.blocks, w, E, R, C, False, transposed, codes, scales)
    for e in range(E):
        wanted = expected_codes(w[e], BLOCK, False)
        for found, right in zip((codes[e], scales[e]), wanted, strict=True):
            np.testing.assert_array_equal(found, right.T if transposed else right)


def operand(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def scaled(codes: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    R, K = codes.shape
    wide = np.repeat(np.repeat(scales.astype(np.float64), rows, 0)[:R], BLOCK, 1)[:, :K]
    return values(codes) * wide


@pytest.mark.parametrize(
    ("M", "N", "K"),
    [(64, 128, 128), (1, 8, 16), (65, 130, 144), (3, 264, 1040)],  # over all stages and back
)
def test_fp8_product(kernels: ctypes.CDLL, M: int, N: int, K: int) -> None:
    rng = np.random.default_rng(M)
    a, b = operand(rng, (M, K)), operand(rng, (N, K))
    a_scales = rng.uniform(0.5, 2, (M, blocks_of(K))).astype(np.float32)
    b_scales = rng.uniform(0.5, 2, (blocks_of(N), blocks_of(K))).astype(np.float32)
    c = np.full((M, N), np.nan, np.float32)
    run(kernels.gemm, a, a_scales, b, b_scales, M, N, K, c)
    expected = scaled(a, a_scales, 1) @ scaled(b, b_scales, BLOCK).T
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-4)


COUNTS = [1, 0, 64, 70, 0]  # a short tile, none, exactly one, several
SLACK = 2 * BLOCK  # rows behind the result that no tile may touch


def test_grouped_fp8_product(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    E, M, N, K = len(COUNTS), sum(COUNTS), 136, 272
    a, b = operand(rng, (M, K)), operand(rng, (E, N, K))
    a_scales = rng.uniform(0.5, 2, (M, blocks_of(K))).astype(np.float32)
    b_scales = rng.uniform(0.5, 2, (E, blocks_of(N), blocks_of(K))).astype(np.float32)
    offsets = np.cumsum([0, *COUNTS])
    c = np.full((M + SLACK, N), np.nan, np.float32)
    run(kernels.grouped_fp8, a, a_scales, b, b_scales, offsets, E, M, N, K, c)
    wide = scaled(a, a_scales, 1)
    for e in range(E):
        rows = slice(offsets[e], offsets[e + 1])
        expected = wide[rows] @ scaled(b[e], b_scales[e], BLOCK).T
        np.testing.assert_allclose(c[rows], expected, rtol=1e-5, atol=1e-4)
    assert np.isnan(c[M:]).all()


def test_grouped_bf16_product(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    E, M, N, K = len(COUNTS), sum(COUNTS), 130, 328
    a = rng.standard_normal((M, K)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((E, N, K)).astype(ml_dtypes.bfloat16)
    offsets = np.cumsum([0, *COUNTS])
    c = np.full((M + SLACK, N), np.nan, ml_dtypes.bfloat16)
    run(kernels.grouped_bf16, a, b, offsets, E, M, N, K, c)
    for e in range(E):
        rows = slice(offsets[e], offsets[e + 1])
        expected = a[rows].astype(np.float64) @ b[e].astype(np.float64).T
        np.testing.assert_allclose(c[rows].astype(np.float64), expected, rtol=2**-8, atol=1e-3)
    assert np.isnan(c[M:].astype(np.float32)).all()


def test_shapes_the_kernels_cannot_take(kernels: ctypes.CDLL) -> None:
    none = np.zeros(1)
    assert kernels.gemm(*[ctypes.c_void_p(0)] * 4, *map(ctypes.c_int64, (1, 1, 24)), None) != 0
    run(kernels.gemm, none, none, none, none, 0, 8, 16, none)
    run(kernels.rows, none, 0, 128, 0, none, none)
