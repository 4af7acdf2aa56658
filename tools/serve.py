#!/usr/bin/env python
"""Serve a model over HTTP with FastDeploy's API, which the openai client speaks too.

    python tools/serve.py --model DIR --port 8188
    python tools/serve.py --model DIR --port 8188 --host 0.0.0.0 --api-key KEY --workers 2
    python tools/serve.py --model DIR --weights-dir SNAPSHOTS --precision fp8

Takes FastDeploy's flags; those without meaning on one CPU are named and not used. The page of the
API is at /docs. Ctrl-C or SIGTERM lets running requests end first.
Exit codes: 0 done, 1 damaged model, 2 bad option or input.
"""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from paddle_ernie.serve import flags
from paddle_ernie.utils.cli import run_main
from paddle_ernie.utils.logs import configure_logging
from paddle_ernie.utils.threads import configure_threads


def main() -> int:
    """Parse, set up, serve."""
    command = flags.parse(__doc__ or "", sys.argv[1:])
    configure_logging(Console(stderr=True))
    command.warn()
    configure_threads(command.threads)
    from paddle_ernie.serve.processes.run import serve

    make_worker = functools.partial(flags.make_worker, command.model, command.options)
    return serve(make_worker, command.settings)


if __name__ == "__main__":
    sys.exit(run_main(main))
