#!/usr/bin/env python
"""Check a running rollout server, paddle_ernie's or FastDeploy's, against the contract.

    python deploy/fastdeploy/smoke.py http://127.0.0.1:8188
    python deploy/fastdeploy/smoke.py http://127.0.0.1:8188 --ours --control --update 12

Without options nothing is done to the server but generating a few tokens. Needs Python and httpx.
Exit codes: 0 everything passed or was skipped, 1 something failed, 2 bad option or no server.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import httpx
from contract import control, generation, plain, streams
from contract.server import Check, Options, Server, Skip

GROUPS = {
    "plain": plain.CHECKS,
    "generation": generation.CHECKS,
    "streams": streams.CHECKS,
    "control": control.CHECKS,
}
FAULTS = (AssertionError, httpx.HTTPError, KeyError, IndexError, TypeError, ValueError)
"""What an answer of the wrong shape leads to; anything else is a mistake of a check."""
WIDTH = 100


@dataclass(frozen=True)
class Outcome:
    """Of one check."""

    group: str
    check: str
    result: str
    """pass, fail or skip."""
    remark: str
    seconds: float


def run_checks(server: Server, only: list[str]) -> list[Outcome]:
    """All of them, or those groups."""
    return [
        run_check(server, group, check)
        for group, checks in GROUPS.items()
        if not only or group in only
        for check in checks
    ]


def run_check(server: Server, group: str, check: Check) -> Outcome:
    """One, whatever the server answers."""
    started = time.perf_counter()
    try:
        result, remark = "pass", check(server) or ""
    except Skip as reason:
        result, remark = "skip", str(reason)
    except AssertionError as fault:
        result, remark = "fail", str(fault)
    except FAULTS as fault:
        result, remark = "fail", f"{type(fault).__name__}: {fault}"
    return Outcome(group, check.__name__, result, remark, time.perf_counter() - started)


def table(outcomes: list[Outcome]) -> str:
    """For people, and for grep."""
    rows = [("group", "check", "result", "seconds", "remark")]
    rows += [
        (one.group, one.check, one.result, f"{one.seconds:.2f}", " ".join(one.remark.split()))
        for one in outcomes
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4][:WIDTH]]
        ).rstrip()
        for row in rows
    ]
    counts = {
        name: sum(one.result == name for one in outcomes) for name in ("pass", "fail", "skip")
    }
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    return "\n".join([*lines, "", summary])


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """Options, and the groups to run."""
    description, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("url", help="http://HOST:PORT of the API")
    add("--metrics-url", metavar="URL", help="default: /metrics of the API's port")
    add("--api-key", metavar="KEY", help="the server's, if it has one")
    add("--model", default="default", metavar="NAME", help="name to send (default: %(default)s)")
    add("--timeout", type=float, default=120.0, metavar="S", help="per request (%(default)s)")
    add("--only", nargs="+", choices=sorted(GROUPS), default=[], help="these groups of checks")
    add("--ours", action="store_true", help="check what FastDeploy does not have as well")
    add("--control", action="store_true", help="pause and resume the server")
    add("--update", metavar="VERSION", help="load these weights")
    add("--sleep", action="store_true", help="put weights and cache away and bring them back")
    add("--overload", type=int, default=0, metavar="N", help="send N requests at once, expect 429")
    found = parser.parse_args(arguments)
    url = found.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        parser.error(f"url is {found.url!r}; expected http://HOST:PORT")
    options = Options(
        url=url,
        metrics_url=found.metrics_url or f"{url}/metrics",
        api_key=found.api_key,
        model=found.model,
        timeout_s=found.timeout,
        ours=found.ours,
        control=found.control,
        update=found.update,
        sleep=found.sleep,
        overload=found.overload,
    )
    return options, found.only


def main(arguments: list[str] | None = None) -> int:
    """Check, print, tell."""
    options, only = parse(sys.argv[1:] if arguments is None else arguments)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    with httpx.Client(
        base_url=options.url, headers=headers, timeout=options.timeout_s, trust_env=False
    ) as http:
        try:
            http.get("/health")
        except httpx.TransportError as error:
            print(f"error: {options.url} does not answer: {error}", file=sys.stderr)
            return 2
        outcomes = run_checks(Server(http, options), only)
    print(table(outcomes))
    return int(any(one.result == "fail" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
