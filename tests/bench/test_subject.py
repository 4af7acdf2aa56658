"""Programs that answer differently are not compared."""

import pytest

from paddle_ernie.bench import subject as module
from paddle_ernie.bench.party import Answer
from paddle_ernie.bench.sides import Rival, Sides
from paddle_ernie.bench.subject import Subject, check_same_text, export_subjects
from paddle_ernie.utils.errors import PaddleErnieError
from tests.bench.tiny import ALONE, TINY

TOKENS = {"ours": [[1, 2, 3], [4, 5, 6]]}


def answers(monkeypatch, **tokens: object) -> None:
    def fresh(self: Sides, side: str, request: dict) -> object:
        found = {**TOKENS, **tokens}[side]
        return lambda: (
            Answer({}, found, 0) if isinstance(found, str) else Answer({"tokens": found}, "", 0)
        )

    monkeypatch.setattr(Sides, "fresh", fresh)


@pytest.fixture
def asked(tmp_path):
    rival = Rival(tmp_path, "")
    subject = Subject("random weights", "", TINY, tmp_path, tmp_path, 320)
    return lambda: check_same_text(Sides(1, 1, rival, rival), subject, prompt=4)


def test_later_tokens_may_differ(monkeypatch, asked) -> None:
    answers(monkeypatch, theirs=TOKENS["ours"], vllm=[[1, 2, 9], [4, 5, 6]])
    result = asked()
    assert result.values == {"transformers": (1.0, 1.0), "vLLM": (1.0, 5 / 6)}


def test_first_tokens_may_not(monkeypatch, asked) -> None:
    answers(monkeypatch, theirs=[[1, 2, 3], [7, 5, 6]], vllm=TOKENS["ours"])
    with pytest.raises(PaddleErnieError, match=r"ours and transformers do not run the same model"):
        asked()


def test_a_rival_that_cannot_run_it_is_told(monkeypatch, asked) -> None:
    answers(monkeypatch, theirs="KeyError: no such layer", vllm=TOKENS["ours"])
    with pytest.raises(PaddleErnieError, match="transformers cannot run random weights: KeyError"):
        asked()


@pytest.mark.slow
def test_random_weights_and_a_folder(tmp_path) -> None:
    (first,) = export_subjects(ALONE, TINY, None, tmp_path)
    both = export_subjects(ALONE, TINY, first.ours, tmp_path / "again")
    assert [subject.prefix for subject in both] == ["", "model-"]
    assert both[1].config == first.config and both[1].num_ids == TINY.vocab_size
    assert (both[1].public / "config.json").is_file()
    assert module.SAME_ROWS == 8 and both[0].has_experts
