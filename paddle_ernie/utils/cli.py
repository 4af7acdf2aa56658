"""What every tool does around its work: errors a user can mend become a screen and an exit code.

    if __name__ == "__main__":
        sys.exit(run_main(main))

Anything that is not a user's or the machine's fault keeps its traceback.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from paddle_ernie.utils.errors import ExitCode, PaddleErnieError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
MAX_MESSAGE_CHARS = 2400  # 30 lines of 80: one screen, with the nine faults that are shown at most
NOT_A_FOLDER = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def run_main(function: Callable[[], int | None]) -> int:
    """Call `function`, report a foreseeable error on stderr, and return the exit code."""
    try:
        code = function()
        sys.stdout.flush()
        return ExitCode.DONE if code is None else code
    except PaddleErnieError as error:
        return _report(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _report("stopped before anything was started", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe left (`--dry-run | head`): nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except MemoryError:
        text = "out of memory; lower train.micro_batch_size or set train.recompute=true"
        return _report(text, ExitCode.FAILURE)
    except OSError as error:
        message = os_error_message(error)
        if message is None:
            raise
        failed = error.errno in DISK_FULL
        return _report(message, ExitCode.FAILURE if failed else ExitCode.BAD_INPUT)


def tool_parser(documentation: str) -> argparse.ArgumentParser:
    """A parser whose help is a tool's docstring: its first paragraph, arguments, then the rest."""
    description, _, rest = documentation.partition("\n\n")
    return argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def whole_number(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A `type` of argparse arguments: whole numbers in low..high."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            limit = f"{low} or more" if high == 2**63 - 1 else f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number, {limit}")
        return value

    return parse


def os_error_message(error: OSError) -> str | None:
    """What a user can do about an error of the file system; None if it is nothing they can mend."""
    where = error.filename2 or error.filename
    at = f"{os.fsdecode(where)}: " if isinstance(where, (str, bytes, os.PathLike)) else ""
    if error.errno in DISK_FULL:
        return (
            f"{at}{error.strerror}: the disk, quota or file size limit is reached; files already "
            "complete stand. Free some space and run the same command again"
        )
    if error.errno in NOT_WRITABLE:
        return f"{at}{error.strerror}; choose a path this user may use, or change its rights"
    if error.errno in NOT_A_FOLDER:
        return f"{at}{error.strerror}; check each part of the path"
    return None


def _report(message: str, code: int) -> int:
    if len(message) > MAX_MESSAGE_CHARS:  # a value of the user's may be of any length
        half = MAX_MESSAGE_CHARS // 2
        message = f"{message[:half]} [...] {message[-half:]}"
    heading = "interrupted" if code == ExitCode.INTERRUPTED else "error"
    text = Text.assemble((f"{heading}: ", "bold red"), message)
    console = Console(stderr=True, highlight=False)
    # Lines are broken between words on a terminal, and not at all in a file.
    console.print(text, soft_wrap=not console.is_terminal)
    return int(code)
