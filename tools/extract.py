"""Cut a standalone model out of an elastic one.

    python tools/extract.py --model DIR --subnet layers=6,experts=8,top_k=2 --output DIR
    python tools/extract.py --model DIR --total-ratio 0.36 --active-ratio 0.54 --output DIR

The output is a model directory like any other, plus extraction.json, which says what was kept.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.config.data import DataConfig, SourceConfig
from paddle_ernie.config.run import RunConfig
from paddle_ernie.config.stages import ExtractChoice, ExtractConfig
from paddle_ernie.elastic.subnet import parse_spec
from paddle_ernie.launch import import_paddle
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.manifest import MANIFEST_FILE
from paddle_ernie.utils.options import RunOptions, StopFlag
from paddle_ernie.utils.signals import stop_on_signals
from paddle_ernie.utils.threads import configure_threads

MIN_SEQ_LEN = 8  # as the schema of data.max_seq_len has it
CALIBRATION_BYTES = 4_000_000  # of each source; far more text than the calibration rows hold


def main() -> None:
    """Extract into `--output` itself; tokenised calibration text goes to a temporary folder."""
    arguments = _parser().parse_args()
    choice = _choice(arguments)
    _check_output(arguments.output)
    console, stop = Console(), StopFlag()
    configure_logging(console)
    configure_threads(arguments.threads)
    import_paddle()
    from paddle_ernie.train.extract_stage import extract_to  # after threads: it imports Paddle

    with tempfile.TemporaryDirectory(prefix="paddle_ernie-") as cache, stop_on_signals(stop):
        config = ExtractConfig(
            stage="extract",
            run=RunConfig(output_dir=arguments.output, seed=arguments.seed),
            init_from=arguments.model,
            data=_calibration_text(arguments, Path(cache)),
            extract=choice,
        )
        extract_to(config, arguments.output, RunOptions(stop=stop, console=console))


def _check_output(output: Path) -> None:
    """An existing folder is replaced only if it is a model directory."""
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output}: a file; expected a folder to write a model to")
    if output.exists() and any(output.iterdir()) and not (output / MANIFEST_FILE).exists():
        raise InputError(f"--output {output}: holds files that are not a model; give a new folder")


def _choice(arguments: argparse.Namespace) -> ExtractChoice:
    ratios = (arguments.total_ratio, arguments.active_ratio)
    if (arguments.subnet is None) != all(ratio is not None for ratio in ratios) or (
        arguments.subnet is not None and any(ratio is not None for ratio in ratios)
    ):
        raise InputError("give either --subnet, or both --total-ratio and --active-ratio")
    for name, ratio in zip(("--total-ratio", "--active-ratio"), ratios, strict=True):
        if ratio is not None and not 0 < ratio <= 1:
            raise InputError(f"{name} is {ratio:g}; expected more than 0 and at most 1")
    return ExtractChoice(
        subnet=None if arguments.subnet is None else parse_spec(arguments.subnet),
        total_ratio=ratios[0],
        active_ratio=ratios[1],
        importance=arguments.importance,
        calibration_rows=arguments.calibration_rows,
    )


def _calibration_text(arguments: argparse.Namespace, cache: Path) -> DataConfig:
    sources: list[dict[str, Any]] = [{"path": path} for path in arguments.data]
    return DataConfig(
        sources=[
            SourceConfig(max_bytes=CALIBRATION_BYTES, **source)
            for source in sources or [{"format": "python_stdlib"}]
        ],
        max_seq_len=arguments.seq_len,
        cache_dir=cache,
    )


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    add = parser.add_argument
    add("--model", type=Path, required=True, help="model directory of the elastic model")
    add("--output", type=Path, required=True, help="model directory to write")
    add("--subnet", help="sizes: layers=6,experts=8,top_k=2; what is left out stays full")
    add("--total-ratio", type=float, help="wanted share of all parameters without embeddings")
    add(
        "--active-ratio",
        type=float,
        help="wanted share of the active parameters without embeddings",
    )
    add("--importance", choices=("reap", "frequency", "first"), default="reap",
        help="how experts are ranked (default: %(default)s)")  # fmt: skip
    add("--data", type=Path, nargs="+", default=[], metavar="PATH",
        help="files or folders of calibration text (default: the Python library)")  # fmt: skip
    positive = whole_number(1)
    add("--calibration-rows", type=positive, default=32, help="rows of text (default: %(default)s)")
    add(
        "--seq-len",
        type=whole_number(MIN_SEQ_LEN),
        default=256,
        help="tokens a row (default: %(default)s)",
    )
    add(
        "--seed",
        type=whole_number(0),
        default=1,
        help="which rows are taken (default: %(default)s)",
    )
    add("--threads", type=positive, help="threads (default: every core)")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
