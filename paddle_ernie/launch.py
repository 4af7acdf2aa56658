"""From a configuration to its run: one dictionary, and what must hold before any stage starts.

    tools/train.py -> run_stage -> output folder is usable, not another run's -> config.yaml
                                -> threads -> STAGE_RUNNERS[config.stage](config, options)

Runners are imported when they are called, so that looking at a configuration costs no Paddle.
"""

import errno
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddle_ernie.config.compare import changes
from paddle_ernie.config.loader import dump_yaml, plain, read_text
from paddle_ernie.config.source import Plain, parse_yaml
from paddle_ernie.config.stages import StageConfig
from paddle_ernie.utils.errors import ConfigError, InputError, TrainingError
from paddle_ernie.utils.files import write_text
from paddle_ernie.utils.options import RunOptions
from paddle_ernie.utils.signals import stop_on_signals
from paddle_ernie.utils.threads import configure_threads

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
STARTED_MARKS = ("checkpoints/step-*", "model", "*/stage.json")  # what only a started run leaves
MAX_CHANGES_SHOWN = 8


def run_stage(config: StageConfig, options: RunOptions) -> None:
    """Run `config` to its end in its output folder; errors pass through.

    The folder holds the resolved configuration before anything else is written to it. SIGINT and
    SIGTERM set `options.stop` while the stage runs.
    """
    prepare_folder(config, options)
    configure_threads(config.run.num_threads)
    _import_paddle()
    with stop_on_signals(options.stop):
        STAGE_RUNNERS[config.stage](config, options)


def check_role(config: StageConfig, role: str | None) -> None:
    """Raise an InputError for a role that the stage does not have."""
    known = STAGE_ROLES.get(config.stage, ())
    if role is not None and role not in known:
        expected = f"one of {', '.join(known)}" if known else "no --role: it is one process"
        raise InputError(f"--role {role}: stage {config.stage} expects {expected}")


def prepare_folder(config: StageConfig, options: RunOptions) -> None:
    """Make the output folder, refuse one that another configuration has begun, save ours."""
    check_resume(options.resume)
    folder = config.run.output_dir
    check_writable(folder)
    if options.resume == "auto" and is_started(folder):
        check_same_run(folder, config)
    write_text(folder / CONFIG_FILE, dump_yaml(config))


def check_resume(resume: str) -> None:
    """`auto`, `never`, or a path that exists."""
    if resume not in ("auto", "never") and not Path(resume).exists():
        raise InputError(f"--resume {resume}: no such checkpoint; expected auto, never or its path")


def check_writable(folder: Path) -> None:
    """Create `folder` if need be and write a file in it; InputError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"writable")
            stream.flush()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TrainingError(f"run.output_dir {folder}: no space left; free some") from error
        raise InputError(
            f"run.output_dir {folder}: cannot be written: {error.strerror} ({error.filename}); "
            "choose another folder, for example -o run.output_dir=runs/mine"
        ) from error


def is_started(folder: Path) -> bool:
    """Whether a run got as far as leaving something that could be continued."""
    return any(True for mark in STARTED_MARKS for _ in folder.glob(mark))


def check_same_run(folder: Path, config: StageConfig) -> None:
    """Raise a ConfigError if `folder` was begun with a configuration that computes otherwise.

    Stages of a pipeline are compared one by one by the pipeline itself, which runs again those
    whose inputs changed; here only the kind of run must agree.
    """
    saved = _saved(folder / CONFIG_FILE)
    if saved is None:
        return
    found = list(changes(saved, plain(config)))
    if config.stage == "pipeline":
        found = [change for change in found if change.path == ("stage",)]
    fixed = [change for change in found if not change.is_free]
    if fixed:
        raise ConfigError(_conflict(folder, [str(change) for change in fixed]))
    for change in found:
        logger.info("the run goes on with a changed setting: %s", change)


def _import_paddle() -> None:
    """Import Paddle before signal handlers are set: its import replaces that of SIGTERM."""
    with warnings.catch_warnings():
        # About a cache for compiling operators; its absence is no news to a user who trains.
        warnings.filterwarnings("ignore", message="No ccache found")
        import paddle  # noqa: F401


def _saved(path: Path) -> Plain:
    try:
        saved = parse_yaml(read_text(path), str(path)).value
    except ConfigError as error:
        logger.warning("the run's own configuration cannot be read and is replaced: %s", error)
        return None
    if not isinstance(saved, dict):
        logger.warning("%s is not a configuration and is replaced", path)
        return None
    return saved


def _conflict(folder: Path, lines: list[str]) -> str:
    shown = lines[:MAX_CHANGES_SHOWN]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    listed = "\n  ".join(shown)
    return (
        f"{folder} holds a run of another configuration:\n  {listed}\n"
        "put these back to go on with it, choose another run.output_dir, or start over with "
        "--resume never"
    )


def _run_pretrain(config: Any, options: RunOptions) -> None:
    from paddle_ernie.train.pretrain import run_pretrain

    run_pretrain(config, options)


def _run_extract(config: Any, options: RunOptions) -> None:
    from paddle_ernie.train.extract_stage import run_extract

    run_extract(config, options)


def _run_pipeline(config: Any, options: RunOptions) -> None:
    from paddle_ernie.post.pipeline import run_pipeline

    run_pipeline(config, options)


STAGE_RUNNERS: dict[str, Callable[[Any, RunOptions], None]] = {
    "pretrain": _run_pretrain,
    "extract": _run_extract,
    "pipeline": _run_pipeline,
}

STAGE_ROLES: dict[str, tuple[str, ...]] = {}  # stages made of several processes, and their names
