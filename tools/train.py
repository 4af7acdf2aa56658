#!/usr/bin/env python
"""Run what a configuration describes: a training stage, an extraction, or a pipeline of them.

    python tools/train.py -c configs/quickstart.yaml
    python tools/train.py -c configs/quickstart.yaml --dry-run
    python tools/train.py -c configs/quickstart.yaml -o stages.pretrain.train.max_steps=900

Exit codes: 0 done, 1 failure, 2 bad configuration or input, 130 interrupted (state saved).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie import __version__
from paddle_ernie.config.loader import load_config
from paddle_ernie.dry_run import show_plan
from paddle_ernie.launch import check_role, run_stage
from paddle_ernie.utils.cli import run_main, tool_parser
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.options import RunOptions, StopFlag
from paddle_ernie.utils.signals import stop_on_signals


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = tool_parser(__doc__ or "")
    parser.add_argument("-c", "--config", required=True, metavar="FILE", help="YAML configuration")
    parser.add_argument(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key, e.g. run.seed=2 or stages.pretrain.train.max_steps=900; repeatable",
    )
    parser.add_argument("--dry-run", action="store_true", help="show sizes and cost, run nothing")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="auto: go on from the newest checkpoint (default); never: start over; or a checkpoint",
    )
    parser.add_argument("--role", metavar="NAME", help="run one part of a stage made of several")
    parser.add_argument("--version", action="version", version=f"paddle_ernie {__version__}")
    return parser.parse_args()


def main() -> None:
    """Parse, load, run."""
    arguments = parse_arguments()
    config = load_config(arguments.config, arguments.override, inputs_exist=not arguments.dry_run)
    check_role(config, arguments.role)
    console = Console()
    configure_logging(console)
    if arguments.dry_run:
        show_plan(config, console)
        return
    stop = StopFlag()
    with stop_on_signals(stop):
        run_stage(config, RunOptions(resume=arguments.resume, stop=stop, console=console))


if __name__ == "__main__":
    sys.exit(run_main(main))
