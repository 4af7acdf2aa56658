"""What is generated from: one set of weights in our format and in the public one, and the proof
that all programs read the same from it. Called by `bench.generate`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.bench.results import Result
from paddle_ernie.bench.sides import Sides, model_request
from paddle_ernie.bench.train import DISTINCT_DEVIATION
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import read_model_config
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.errors import PaddleErnieError

SAME_ROWS, SAME_NEW = 8, 8


@dataclass(frozen=True)
class Subject:
    """A model on disk, for all sides."""

    title: str
    prefix: str
    """Of the names of its results: nothing, or `model-` for one that was given."""
    config: ModelConfig
    ours: Path
    """Model directory."""
    public: Path
    """The same weights in the public layout."""
    num_ids: int
    """Prompts are drawn from these."""

    @property
    def has_experts(self) -> bool:
        """Whether implementations of experts differ."""
        return bool(self.config.moe_layers)

    def request(self, **fields: int) -> dict[str, Any]:
        """What every side is asked, but for its mode."""
        return {
            "do": "generate",
            "model_dir": str(self.ours),
            "weights": str(self.public),
            "vocab_size": self.num_ids,
            **fields,
        }


def export_subjects(
    sides: Sides, model: ModelConfig, model_dir: Path | None, work: Path
) -> list[Subject]:
    """The reference model with random weights, then the one of `model_dir` if it is given."""
    distinct = model.model_copy(update={"initializer_range": DISTINCT_DEVIATION})
    assert model.vocab_size is not None, "a benchmark model has a vocab_size"
    subjects = [
        Subject("random weights", "", distinct, work / "ours", work / "public", model.vocab_size)
    ]
    if model_dir is not None:
        subjects.append(
            Subject(
                model_dir.name,
                "model-",
                read_model_config(model_dir),
                model_dir.absolute(),
                work / "public-model",
                Tokenizer.load(model_dir).vocab_size,
            )
        )
    with sides.ours() as party:
        for subject in subjects:
            answer = party.ask(
                {
                    "do": "export",
                    "model": None if subject.prefix else model_request(subject.config),
                    "model_dir": str(subject.ours),
                    "public": str(subject.public),
                }
            )
            if answer.missing:
                raise PaddleErnieError(f"exporting {subject.title} failed: {answer.missing}")
    return subjects


def check_same_text(sides: Sides, subject: Subject, *, prompt: int) -> Result:
    """Raise unless all programs greedily choose the same first tokens in fp32.

    Later ones may part where two tokens are as good as each other; their share is shown.
    """
    request = subject.request(rows=SAME_ROWS, prompt=prompt, new=SAME_NEW, repeats=1)
    asked = [("ours", "ours", {"weights": "fp32"})]
    if sides.rival is not None:
        asked.append(("theirs", "transformers", {"weights": "fp32", "experts": "eager"}))
    if sides.vllm is not None:
        asked.append(("vllm", "vLLM", {"weights": "fp32", "compiled": False}))
    found = {}
    for side, name, mode in asked:
        answer = sides.fresh(side, {**request, "mode": mode})()
        if answer.missing:
            raise PaddleErnieError(f"{name} cannot run {subject.title}: {answer.missing}")
        found[name] = answer.values["tokens"]
    shares = {name: _alike(found["ours"], found[name]) for name in list(found)[1:]}
    for name, (first, _) in shares.items():
        if first < 1:
            raise PaddleErnieError(
                f"ours and {name} do not run the same model: of {SAME_ROWS} greedy first tokens "
                f"{first:.0%} are alike; a comparison of their speed would mean nothing"
            )
    columns = (Column("ours and", align="left"), Column("first token"), Column("all tokens"))
    rows = [
        (name, tables.percent(first), tables.percent(every))
        for name, (first, every) in shares.items()
    ]
    table = Table(f"Greedy tokens that are alike: {subject.title}", columns, rows)
    return Result(f"{subject.prefix}same_text", table, shares)


def _alike(ours: list[list[int]], theirs: list[list[int]]) -> tuple[float, float]:
    """Shares of equal first tokens and of equal tokens."""
    first = sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True)) / len(ours)
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a, b, strict=True)]
    return first, sum(a == b for a, b in pairs) / len(pairs)
