"""Paths as users write them, and numbers that are finite and of a size that can be meant."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from paddle_ernie.config.base import Section, UserPath
from paddle_ernie.config.loader import load_config
from paddle_ernie.utils.errors import ConfigError

DEBUG = Path(__file__).resolve().parents[2] / "configs" / "pretrain" / "debug.yaml"


class Example(Section):
    path: UserPath
    other: UserPath | None = None


def fault_text(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(DEBUG, overrides)
    return str(caught.value)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Example(path="~/runs/a").path == tmp_path / "runs" / "a"
    assert Example(path="a~/b").path == Path("a~/b")
    assert Example(path=Path("a"), other=None).path == Path("a")


@pytest.mark.parametrize(
    ("path", "words"),
    [("", "found empty text"), ("  ", "found empty text"), ("a\0b", "NUL"), ("~nobody1/x", "home")],
)
def test_what_is_no_path(path: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Example(path=path)


def test_an_empty_output_folder_is_not_the_current_one() -> None:
    text = fault_text('run.output_dir=""', 'data.sources=[{path: ""}]')
    assert text.count("expected a path, found empty text") == 2
    assert 'run.output_dir = ""' in text and 'data.sources.0.path = ""' in text


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e400"])
@pytest.mark.parametrize(
    "key", ["train.learning_rate", "model.rope_theta", "monitor.peak_gflops", "data.valid_fraction"]
)
def test_numbers_are_finite(key: str, number: str) -> None:
    text = fault_text(f"{key}={number}")
    assert f"{key} = " in text and "expected" in text


@pytest.mark.parametrize(
    ("override", "limit"),
    [
        ("model.num_hidden_layers=100_000_000", 1e3),
        ("model.hidden_size=6_400_000_000", 1e6),
        ("model.moe_num_experts=10_000_000_000", 1e4),
        ("model.vocab_size=100_000_000_000", 1e7),
        ("data.tokenizer.vocab_size=100_000_000_000", 1e7),
        ("train.max_steps=99_999_999_999_999", 1e9),
        ("run.num_threads=100_000", 4096),
    ],
)
def test_slips_of_the_keyboard_are_no_sizes(override: str, limit: float) -> None:
    assert f"expected at most {int(limit):,}" in fault_text(override)


def test_a_seed_fits_the_generators() -> None:
    assert load_config(DEBUG, [f"run.seed={2**63 - 1}"]).run.seed == 2**63 - 1
    assert "expected less than 9,223,372,036,854,775,808" in fault_text(f"run.seed={2**63}")
