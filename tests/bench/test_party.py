"""Real processes: questions and answers, who rests does not compute, failures say what happened."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddle_ernie.bench.party import Party, PartyError, our_command
from paddle_ernie.bench.quiet import process_seconds
from paddle_ernie.bench.sides import model_request
from tests.bench.tiny import TINY

ECHO = """
import sys, threading
sys.path.insert(0, "paddle_ernie/bench/rivals")
from protocol import serve

def spin():
    while True:
        pass

def end(request):
    raise SystemExit(3)

def echo(request):
    print("what a library has to say")
    return {"best": request["value"]}

threading.Thread(target=spin, daemon=True).start()
serve({"echo": echo, "end": end}, {"software": "echo", "threads": 1})
"""


@pytest.fixture(scope="module")
def ours() -> Iterator[Party]:
    with Party("ours", our_command(), 1) as party:
        yield party


def op(name: str, shape: dict, **fields: object) -> dict:
    request = {"do": "op", "op": name, "shape": shape, "method": "", "seconds": 0.001}
    return {**request, "format": "fp32", "backward": False, **fields}


@pytest.mark.parametrize("format_name", ["fp32", "bf16", "fp8"])
def test_our_process_measures_products_in_every_format(ours: Party, format_name: str) -> None:
    for name, shape in (
        ("gemm", {"M": 3, "K": 16, "N": 16}),
        ("experts", {"E": 3, "M": 2, "K": 16, "N": 16}),
    ):
        answer = ours.ask(op(name, shape, format=format_name))
        assert answer.missing == ""
        assert 0 < answer.values["best"] <= answer.values["median"] < 10
        assert answer.values["packing"] >= 0


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("attention", {"B": 1, "S": 8, "H": 2, "G": 1, "d": 16}),
        ("rms_norm", {"T": 4, "D": 16}),
        ("swiglu", {"T": 4, "F": 16}),
        ("cross_entropy", {"T": 4, "D": 16, "V": 32}),
        ("adamw", {"sizes": [[3, 4], [5]]}),
    ],
)
def test_our_process_measures_every_operator(
    ours: Party, name: str, shape: dict, backward: bool
) -> None:
    answer = ours.ask(op(name, shape, backward=backward))
    assert answer.missing == "" and answer.values["best"] > 0


def test_our_process_trains(ours: Party) -> None:
    trained = ours.ask(
        {"do": "train", "model": model_request(TINY), "rows": 1, "seq_len": 16, "steps": 3}
        | {"mode": {"weights": "bf16"}}
    )
    assert trained.missing == "" and 0 < trained.values["loss"] < 10
    assert trained.values["samples"] == 3 and trained.values["peak_bytes"] > 5e7


def test_our_process_exports_and_generates(ours: Party, tmp_path: Path) -> None:
    request = {"model_dir": str(tmp_path / "m"), "public": None, "model": model_request(TINY)}
    assert ours.ask({"do": "export", **request}).missing == ""
    written = ours.ask(
        {"do": "generate", "rows": 2, "prompt": 5, "new": 4, "repeats": 1, "vocab_size": 320}
        | {"model_dir": request["model_dir"], "mode": {"weights": "bf16"}}
    )
    assert written.missing == ""
    assert written.values["prefill"]["best"] > 0 and written.values["decode"]["best"] > 0


def test_what_fails_is_an_answer_and_the_process_goes_on(ours: Party) -> None:
    assert "KeyError" in ours.ask(op("weather", {})).missing
    assert ours.ask(op("rms_norm", {"T": 1, "D": 16})).missing == ""


def test_a_process_that_is_not_on_turn_computes_nothing() -> None:
    with Party("echo", [sys.executable, "-c", ECHO], 1) as party:
        assert party.ask({"do": "echo", "value": 1.5}).values == {"best": 1.5}
        before = process_seconds(party._process.pid)
        time.sleep(0.3)
        assert process_seconds(party._process.pid) - before <= 0.02  # its other thread spins
        with pytest.raises(PartyError, match="process of echo failed: ended with code 3"):
            party.ask({"do": "end"})


def test_silence_has_a_limit() -> None:
    party = Party("echo", [sys.executable, "-c", ECHO], 1)
    with party, pytest.raises(PartyError, match="no answer in 0 s"):
        party.ask({"do": "echo", "value": 1}, seconds=0)


def test_a_process_that_does_not_start_shows_its_error() -> None:
    with pytest.raises(PartyError, match="no such library"):
        Party("broken", [sys.executable, "-c", "raise SystemExit('no such library')"], 1)
