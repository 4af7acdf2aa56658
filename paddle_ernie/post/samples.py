"""The `samples` stage: the same prompts continued by several models, side by side.

Writes `samples.json`, a list of {model, prompt, text}, and shows the texts on the terminal.
"""

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from paddle_ernie.config.precision import PrecisionConfig
from paddle_ernie.config.stages import SamplesStep
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import load_model_dir
from paddle_ernie.ops.numerics import Recipe
from paddle_ernie.train.continuation import continue_text
from paddle_ernie.utils.errors import Interrupted
from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.options import RunOptions

SAMPLES_FILE = "samples.json"


def write_samples(
    step: SamplesStep,
    output_dir: Path,
    model_dirs: dict[str, Path],
    seed: int,
    options: RunOptions,
    precision: PrecisionConfig,
) -> None:
    """Continue every prompt with every model; same seed for all, so that differences are theirs."""

    def check_stop() -> None:
        if options.stop:
            raise Interrupted(f"stopped while samples were written ({options.stop.reason})")

    samples = []
    for name, directory in model_dirs.items():
        check_stop()
        model, tokenizer = load_model_dir(directory), Tokenizer.load(directory)
        model.recipe = Recipe.of(precision)
        for prompt in step.prompts:
            text = continue_text(
                model,
                tokenizer,
                prompt,
                max_tokens=step.max_tokens,
                temperature=step.temperature,
                seed=seed,
                before_token=check_stop,
            )
            samples.append({"model": name, "prompt": prompt, "text": text})
            _show(options.console, samples[-1])
    write_json(output_dir / SAMPLES_FILE, samples)


def _show(console: Console, sample: dict[str, str]) -> None:
    text = Text.assemble((sample["prompt"], "bold"), sample["text"])
    console.print(Panel(text, title=sample["model"], title_align="left"))
