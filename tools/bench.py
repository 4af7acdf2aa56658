#!/usr/bin/env python
"""Measure this machine: how fast text becomes batches, and what training steps cost.

    python tools/bench.py data                 tokenising, cache, loader
    python tools/bench.py train                steps, sub-models, checkpoints, memory
    python tools/bench.py train --json FILE    the same figures for programs

Times are medians on an otherwise idle machine; run nothing beside it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.bench import BENCHES, show, to_json
from paddle_ernie.launch import import_paddle
from paddle_ernie.utils.cli import run_main, tool_parser
from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = tool_parser(__doc__ or "")
    parser.add_argument("what", choices=sorted(BENCHES), help="what is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--threads", type=int, metavar="N", help="threads; default: every core")
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="disk to measure; default: a temporary folder"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, show, save."""
    arguments = parse_arguments()
    console = Console()
    configure_logging(console)
    threads = configure_threads(arguments.threads)
    import_paddle()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.work_dir) as work:
        results = BENCHES[arguments.what](Path(work))
    show(results, console)
    if arguments.json:
        write_json(arguments.json, to_json(arguments.what, threads, results))


if __name__ == "__main__":
    sys.exit(run_main(main))
