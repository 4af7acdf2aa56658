#!/usr/bin/env python
"""Train one pipeline in fp32, bf16 and FP8 with several seeds and compare the final losses.

    python tools/compare_precision.py -c configs/quickstart.yaml --output-dir runs/precision
    ... --seeds 1 2                    other seeds than 1 2 3

A run that is finished is not repeated, so a call that was interrupted can be given again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.post import precision_study
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.files import write_json


def main() -> None:
    """Train, compare, show, save."""
    arguments = _parser().parse_args()
    outcomes = precision_study.run_study(arguments.config, arguments.seeds, arguments.output_dir)
    Console().print(precision_study.table(outcomes).to_rich())
    write_json(arguments.output_dir / "precision.json", precision_study.to_json(outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=whole_number(0), nargs="+", default=[1, 2, 3], metavar="N")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
