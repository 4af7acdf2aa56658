"""The comparison of steps: ours alone, and beside transformers if they are there."""

import pytest

from paddle_ernie.bench.party import Answer, Party
from paddle_ernie.bench.train import RIVAL_MODES, bench_train, check_same_model
from paddle_ernie.utils.errors import PaddleErnieError
from tests.bench.tiny import ALONE, TINY, both_sides, needs_rival


@pytest.mark.slow
def test_alone() -> None:
    (result,) = bench_train(ALONE, TINY, rows=[2], seq_len=16, steps=2)
    assert [line["mode"] for line in result.values["lines"]] == ["fp32", "bf16", "fp8"]
    assert result.values["ratio"] == {"fp32": None, "bf16": None, "fp8": None}
    for line in result.values["lines"]:
        assert line["tokens_per_s"] == 32 / line["best"]
        assert line["peak_bytes"] > 5e7


@needs_rival
@pytest.mark.slow
def test_beside_transformers_in_every_mode() -> None:
    same, steps = bench_train(both_sides(), TINY, rows=[2], seq_len=16, steps=2)
    assert same.values["ours"]["parameters"] == same.values["theirs"]["parameters"]
    assert steps.values["missing"] == {}
    lines = {(line["side"], line["mode"]): line for line in steps.values["lines"]}
    assert {mode for side, mode in lines if side == "theirs"} > set(RIVAL_MODES)
    fastest = min(lines["theirs", mode]["best"] for mode in RIVAL_MODES)
    assert steps.values["ratio"]["bf16"] == fastest / lines["ours", "bf16"]["best"]


@needs_rival
@pytest.mark.slow
def test_another_model_is_noticed(monkeypatch) -> None:
    changes, ask = iter([{}, {"rms_norm_eps": 0.5}]), Party.ask

    def ask_changed(self: Party, request: dict) -> Answer:
        return ask(self, {**request, "model": request["model"] | next(changes)})

    monkeypatch.setattr(Party, "ask", ask_changed)
    with pytest.raises(PaddleErnieError, match="do not train the same model: loss is"):
        check_same_model(both_sides(), TINY, rows=1, seq_len=16)
