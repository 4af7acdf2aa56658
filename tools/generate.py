#!/usr/bin/env python
"""Continue a prompt with a trained model, on the terminal as it comes.

    python tools/generate.py --model DIR --prompt "def main("
    python tools/generate.py --model DIR --prompt - --temperature 0 < prompt.txt
    python tools/generate.py --model DIR --prompt "import" --subnet layers=4,experts=8 --moe-k 1
    python tools/generate.py --model DIR --chat

Prompt and continuation go to stdout, the speed to stderr. A chat remembers earlier turns; Ctrl-C
stops an answer, /help lists commands.
Exit codes: 0 done, 1 damaged model, 2 bad option or input, 130 interrupted.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.launch import import_paddle
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.errors import ExitCode, InputError
from paddle_ernie.utils.threads import configure_threads

if TYPE_CHECKING:
    from paddle_ernie.models.model import ErnieMoeModel
    from paddle_ernie.models.plan import ForwardPlan


def main() -> int:
    """Load, generate, stream."""
    arguments = _parser().parse_args()
    configure_threads(arguments.threads)
    if arguments.chat:
        return _chat(arguments)
    return _continue(arguments)


def _continue(arguments: argparse.Namespace) -> int:
    prompt = _read_stdin() if arguments.prompt == "-" else arguments.prompt
    # Tensors and Paddle come after the threads are set, and after the options were understood.
    import_paddle()
    from paddle_ernie.data.tokenizer import Tokenizer
    from paddle_ernie.models.decoding import generate
    from paddle_ernie.models.model_dir import load_model_dir
    from paddle_ernie.ops.numerics import PRECISIONS

    model = load_model_dir(arguments.model)
    model.recipe = PRECISIONS[arguments.precision]
    tokenizer = Tokenizer.load(arguments.model)
    prompt_ids = tokenizer.encode(prompt) or [tokenizer.bos_id]
    ids = generate(
        model,
        prompt_ids,
        max_new_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop_ids={tokenizer.eos_id},
        plan=_plan(arguments.subnet, model),
        plan_top_k=arguments.moe_k,
        num_ids=tokenizer.vocab_size,
    )
    streamer, times = tokenizer.streamer(), [time.perf_counter()]
    _write(prompt)
    try:
        for token in ids:
            times.append(time.perf_counter())
            _write(streamer.push(token))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        _write(streamer.flush() + "\n")
        Console(stderr=True).print(_speed(len(prompt_ids), times), highlight=False)
    return ExitCode.DONE


def _chat(arguments: argparse.Namespace) -> int:
    import_paddle()
    from paddle_ernie.data.tokenizer import Tokenizer
    from paddle_ernie.serve.api.chat_template import load_chat_template
    from paddle_ernie.serve.engine.engine import Engine
    from paddle_ernie.serve.engine.options import EngineOptions
    from paddle_ernie.serve.engine.weights import load_weights
    from paddle_ernie.serve.terminal import TerminalChat
    from paddle_ernie.serve.types import SamplingParams

    options = EngineOptions(
        max_num_seqs=1,
        precision=arguments.precision,
        moe_k=arguments.moe_k,
        subnet=arguments.subnet,
    )
    tokenizer = Tokenizer.load(arguments.model)
    engine = Engine(load_weights(arguments.model, options), tokenizer, options)
    template = load_chat_template(tokenizer, arguments.model)
    sampling = SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    TerminalChat(engine, template, sampling, Console()).run()
    return ExitCode.DONE


def _plan(subnet: str | None, model: "ErnieMoeModel") -> "ForwardPlan | None":
    if subnet is None:
        return None
    from paddle_ernie.elastic.subnet import parse_subnet
    from paddle_ernie.elastic.supernet import uniform_plan

    return uniform_plan(parse_subnet(subnet, model.config), 1, model.config)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"prompt on stdin: not UTF-8 at byte {error.start}") from error


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _speed(prompt_tokens: int, times: list[float]) -> str:
    """The first new token includes the prompt; the speed is that of the others."""
    if len(times) < 2:
        return f"prompt of {prompt_tokens} tokens; no new tokens"
    first, rest = times[1] - times[0], times[-1] - times[1]
    text = f"prompt of {prompt_tokens} tokens and first new one in {first:.2f} s"
    if len(times) > 2:
        text += f"; {len(times) - 2} more at {(len(times) - 2) / rest:.1f} tokens/s"
    return text


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="model directory or checkpoint")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", metavar="TEXT", help="text to continue; - reads it from stdin")
    what.add_argument("--chat", action="store_true", help="a conversation on the terminal")
    add(
        "--max-tokens",
        type=whole_number(0),
        default=128,
        help="new tokens at most (default: %(default)s)",
    )
    add("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    add("--top-k", type=whole_number(0), default=0, help="draw from this many tokens; 0: all")
    add("--top-p", type=float, default=0.95, help="draw from this probability mass (%(default)s)")
    add("--seed", type=whole_number(0), default=0, help="of the draws (default: %(default)s)")
    add(
        "--moe-k",
        type=whole_number(1),
        metavar="K",
        help="experts per token (default: the model's)",
    )
    add("--subnet", metavar="SPEC", help="run a sub-model, e.g. layers=4,experts=8,top_k=1")
    add(
        "--precision",
        choices=("fp32", "bf16", "fp8"),
        default="fp32",
        help="operands of matrix products (default: %(default)s)",
    )
    add("--threads", type=whole_number(1), help="threads (default: every core)")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
