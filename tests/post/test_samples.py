"""The samples stage writes every prompt for every model, or, when it is stopped, nothing."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from paddle_ernie.config.precision import PrecisionConfig
from paddle_ernie.config.stages import SamplesStep
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir
from paddle_ernie.post.samples import write_samples
from paddle_ernie.utils.errors import Interrupted
from paddle_ernie.utils.options import RunOptions, StopFlag
from tests.train.tiny import TINY

PROMPTS = ["def ", "", "x = 1\n" * 400]  # an empty one, and one longer than the model
STEP = SamplesStep(kind="samples", name="samples", models=["a", "b"], prompts=PROMPTS, max_tokens=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    Tokenizer.train(["def main():\n    return 42\n" * 20], 300).save(folder / "tokenizer")
    for seed, name in enumerate(STEP.models):
        save_model_dir(folder / name, ErnieMoeModel(TINY, seed=seed), TINY, folder / "tokenizer")
    return {name: folder / name for name in STEP.models}


def test_every_prompt_of_every_model(tmp_path: Path, models: dict[str, Path]) -> None:
    console = Console(record=True, width=100)
    write_samples(STEP, tmp_path, models, 1, RunOptions(console=console), PrecisionConfig())
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert [(s["model"], s["prompt"]) for s in samples] == [(m, p) for m in "ab" for p in PROMPTS]
    assert {sample["text"] for sample in samples[:3]} != {sample["text"] for sample in samples[3:]}
    assert "def " in console.export_text()


def test_a_stop_leaves_no_file(tmp_path: Path, models: dict[str, Path]) -> None:
    class StopAfterTwoTokens(StopFlag):
        asked = 0

        def __bool__(self) -> bool:
            self.asked += 1
            return self.asked > 4

    with pytest.raises(Interrupted, match="while samples were written"):
        write_samples(
            STEP, tmp_path, models, 1, RunOptions(stop=StopAfterTwoTokens()), PrecisionConfig()
        )
    assert list(tmp_path.iterdir()) == []
