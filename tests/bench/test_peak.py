"""The program that measures arithmetic compiles, and its units are in order."""

import shutil

import pytest

from paddle_ernie.bench.peak import Peak, measure_peak


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_rates_of_one_thread() -> None:
    peak = measure_peak(1)
    assert peak is not None
    assert 1 < peak.fp32 < 1000
    assert peak.bf16_dot == 0 or peak.bf16_dot > 1
    assert peak.bf16_tiles == 0 or peak.bf16_tiles > peak.bf16_dot


def test_without_a_compiler_there_is_no_peak(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert measure_peak(1) is None


def test_a_format_is_served_by_its_fastest_unit() -> None:
    peak = Peak(fp32=100, bf16_dot=200, bf16_tiles=0)
    assert (peak.of("fp32"), peak.of("bf16"), peak.of("fp8")) == (100, 200, 200)
    assert Peak(100, 200, 900).of("fp8") == 900
