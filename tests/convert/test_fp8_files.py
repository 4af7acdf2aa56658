"""FP8 matrices keep their bytes through reading and writing again."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paddle_ernie.convert.fp8_files import (
    PADDLE_NAMES,
    TORCH_NAMES,
    WeightValues,
    decode,
    encode,
    fp8_specs,
    is_quantised,
)
from paddle_ernie.convert.hf_files import E4M3, FP32, Spec, TensorFiles, write_sharded
from paddle_ernie.utils.errors import InputError


def matrices():
    """Ragged, of very different magnitudes, with zeros, whole blocks of them, and denormals."""

    def make(seed: int, rows: int, columns: int, exponent: int, spread: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(rows, columns)) * np.exp2(
            rng.normal(exponent, spread, (rows, columns))
        )
        values[rng.random((rows, columns)) < 0.2] = 0
        if seed % 3 == 0:
            values[:128] = 0
        with np.errstate(over="ignore"):
            return np.clip(values, -1e37, 1e37).astype(np.float32)

    sizes = st.sampled_from([1, 7, 128, 130])
    return st.builds(
        make, st.integers(0, 2**20), sizes, sizes, st.integers(-140, 100), st.floats(0, 12)
    )


@given(matrices())
@settings(max_examples=100)
def test_quantising_what_was_read_gives_the_same_bytes(matrix):
    codes, scales = encode(matrix)
    assume((scales >= np.finfo(np.float32).tiny).all())  # below, fp32 has fewer digits
    again = encode(decode(codes, scales))
    np.testing.assert_array_equal(again[0], codes)
    np.testing.assert_array_equal(again[1], scales)


@given(matrices())
@settings(max_examples=60)
def test_powers_of_two_keep_the_values(matrix):
    values = decode(*encode(matrix, power_of_two=True))
    again = encode(values, power_of_two=True)
    np.testing.assert_array_equal(decode(*again), values)
    np.testing.assert_array_equal(np.log2(again[1]) % 1, 0)


def test_values_are_codes_times_scales(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(150, 140)).astype(np.float32)
    codes, scales = encode(matrix)
    spread = scales.repeat(128, 0).repeat(128, 1)[:150, :140]
    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * spread
    for names in (TORCH_NAMES, PADDLE_NAMES):
        folder = tmp_path / names[1]
        folder.mkdir()
        specs = fp8_specs("x.q_proj.weight", matrix.shape, names)
        write_sharded(folder, specs, zip(specs, (codes, scales), strict=True), 10**9, "pt")
        values = WeightValues(TensorFiles(folder))
        assert list(values) == values.quantised == ["x.q_proj.weight"]
        assert values.shape("x.q_proj.weight") == (150, 140)
        np.testing.assert_array_equal(values["x.q_proj.weight"], expected)
        assert values.changed(power_of_two=False) == 0
        assert values.changed(power_of_two=True) == 1


def test_faulty_scales_are_named(tmp_path):
    codes = Spec("x.q_proj.weight", E4M3, (130, 4))
    scales = Spec("x.q_proj.weight_scale_inv", FP32, (1, 1))
    data = {codes: np.zeros((130, 4), np.uint8), scales: np.ones((1, 1), np.float32)}
    write_sharded(tmp_path, list(data), data.items(), 10**9, "pt")
    with pytest.raises(InputError, match=r"scale_inv has shape \[1, 1\], expected \[2, 1\]"):
        WeightValues(TensorFiles(tmp_path))["x.q_proj.weight"]
    (tmp_path / "alone").mkdir()
    write_sharded(tmp_path / "alone", [codes], [(codes, data[codes])], 10**9, "pt")
    with pytest.raises(InputError, match=r"q_proj.weight is FP8, but has no scales"):
        WeightValues(TensorFiles(tmp_path / "alone"))["x.q_proj.weight"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("ernie.layers.0.mlp.experts.3.up_gate_proj.weight", True),
        ("model.layers.0.mlp.gate.weight", False),
        ("model.mtp_linear_proj.0.weight", False),
        ("model.embed_tokens.weight", False),
        ("lm_head.weight", False),
        ("model.layers.0.input_layernorm.weight", False),
    ],
)
def test_which_tensors_are_quantised(name, expected):
    assert is_quantised(name) is expected
