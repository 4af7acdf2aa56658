"""Write a model as one directory that FastDeploy, Hugging Face transformers and PaddleFormers read.

    python tools/export.py --model DIR --output DIR --check
    python tools/export.py --model DIR --output DIR --fp8
    python tools/export.py --model DIR --output DIR --paddle-layout

The default is bf16 in the layout of transformers (Ernie4_5_MoeForCausalLM, or Ernie4_5ForCausalLM
for a dense model), which FastDeploy reads too. --check reads the directory back and compares every
tensor and the logits with the model. A prediction block is also written to OUTPUT/mtp, for
FastDeploy's --speculative-config.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.launch import import_paddle
from paddle_ernie.utils.cli import run_main, tool_parser, whole_number
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def main() -> None:
    """Export, then check if asked for."""
    arguments = _parser().parse_args()
    if arguments.fp8_scales and not arguments.fp8:
        raise InputError("--fp8-scales says how FP8 weights are scaled; give --fp8 too")
    if arguments.model.resolve() == arguments.output.resolve():
        raise InputError(f"--output {arguments.output}: the model itself; give another folder")
    console = Console(highlight=False)
    configure_logging(console)
    configure_threads(arguments.threads)
    import_paddle()
    from paddle_ernie.convert.check import check_export  # after threads: they import Paddle
    from paddle_ernie.convert.export import export_model
    from paddle_ernie.convert.hf_config import TargetFormat

    target = TargetFormat(
        dtype=arguments.dtype,
        fp8=arguments.fp8,
        paddle_layout=arguments.paddle_layout,
        power_of_two_scales=arguments.fp8_scales == "ue8m0",
    )
    report = export_model(
        arguments.model, arguments.output, target, max_shard_bytes=arguments.max_shard_size
    )
    console.print(
        f"{arguments.output}: {report.tensors:,} tensors, {report.nbytes / 1e6:,.1f} MB, "
        f"{report.files} files",
        soft_wrap=True,
    )
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if arguments.check:
        found = check_export(arguments.model, arguments.output, target)
        console.print(
            f"check: {found.tensors:,} tensors and {found.logits:,} logits are as they should be. "
            f"In fp32, logits differ from the model's by at most {found.max_logit_difference:.3g}; "
            f"the likeliest token is the same at {found.same_best_token:.1%} of positions",
            soft_wrap=True,
        )


def size(text: str) -> int:
    """Bytes of "5G", "500MB" or "1000000"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    found = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a size such as 5GB or 500MB")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    add = parser.add_argument
    add("--model", type=Path, required=True, help="model directory")
    add("--output", type=Path, required=True, help="folder to write; an older export is replaced")
    add("--fp8", action="store_true", help="matrices as E4M3 with a scale per 128 x 128 block")
    add("--fp8-scales", choices=("fp32", "ue8m0"),
        help="ue8m0: powers of two, for a model served so (default: fp32)")  # fmt: skip
    add("--paddle-layout", action="store_true",
        help="names and shapes of the -Paddle repositories")  # fmt: skip
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
        help="of what is not FP8; the router is always fp32 (default: %(default)s)")  # fmt: skip
    add("--max-shard-size", type=size, default="5GB", metavar="SIZE",
        help="largest file (default: %(default)s)")  # fmt: skip
    add("--check", action="store_true", help="read it back and compare tensors and logits")
    add("--threads", type=whole_number(1), help="threads (default: every core)")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
