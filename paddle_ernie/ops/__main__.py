"""Build the operators ahead of a run, or show which ones this machine uses.

python -m paddle_ernie.ops build            compile unless that is done, print the path
python -m paddle_ernie.ops build --force    compile again
python -m paddle_ernie.ops info             instruction set, threads, compiler, library
"""

import argparse
import io
import sys
import warnings
from contextlib import redirect_stderr

from rich.console import Console

from paddle_ernie.utils.cli import run_main, tool_parser
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads, cpu_model


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = tool_parser(__doc__ or "")
    commands = parser.add_subparsers(dest="command", required=True, metavar="build|info")
    building = commands.add_parser("build", help="compile the operators into the cache")
    building.add_argument("--force", action="store_true", help="compile even if that is done")
    commands.add_parser("info", help="what this machine uses")
    return parser.parse_args()


def main() -> None:
    """Threads first: Paddle reads them when it is imported."""
    arguments = parse_arguments()
    configure_logging(Console(stderr=True))
    configure_threads(None)
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # hints that are no news
        warnings.simplefilter("ignore")
        import paddle  # noqa: F401
    if arguments.command == "build":
        from paddle_ernie.ops.build import build

        lines = [str(build(force=arguments.force))]
    else:
        lines = [f"{name:<16} {value}" for name, value in facts()]
    for line in lines:
        Console().print(line, soft_wrap=True, highlight=False, markup=False)


def facts() -> list[tuple[str, object]]:
    """What `info` shows; the operators are built if they are not."""
    from paddle_ernie.ops import library
    from paddle_ernie.ops.compiler import CannotBuildError, find_compiler

    try:
        compiler = find_compiler().version
    except CannotBuildError as error:
        compiler = str(error)
    return [
        ("instruction set", library.isa()),
        ("threads", library.threads()),
        ("processor", cpu_model() or "unknown"),
        ("compiler", compiler),
        ("library", library.library_path() or "none: plain NumPy bodies run"),
        ("fingerprint", library.fingerprint("fp32")),
    ]


if __name__ == "__main__":
    sys.exit(run_main(main))
