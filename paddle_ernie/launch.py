"""From a configuration to its run: one dictionary, and what must hold before any stage starts.

    tools/train.py -> run_stage -> output folder is usable, not another run's -> config.yaml
                                -> threads -> STAGE_RUNNERS[config.stage](config, options)

Runners are imported when they are called, so that looking at a configuration costs no Paddle.
"""

import errno
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from paddle_ernie.config.compare import changes
from paddle_ernie.config.loader import dump_yaml, plain, read_text
from paddle_ernie.config.source import Plain, parse_yaml
from paddle_ernie.config.stages import StageConfig
from paddle_ernie.monitor.tables import duration
from paddle_ernie.utils.errors import ConfigError, InputError, TrainingError
from paddle_ernie.utils.files import write_text
from paddle_ernie.utils.manifest import MANIFEST_FILE
from paddle_ernie.utils.options import RunOptions
from paddle_ernie.utils.signals import stop_on_signals
from paddle_ernie.utils.threads import configure_threads

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
CONFIG_HEADER = "# The resolved configuration of this run, written by paddle_ernie.\n"
STARTED_MARKS = ("checkpoints/step-*", f"model/{MANIFEST_FILE}", "*/stage.json")
"""What only a started run leaves."""
REPLACED = (CONFIG_FILE, "model", "checkpoints", "metrics.jsonl", "summary.json")
"""What a run replaces, or removes when it starts over."""
STAGES_WITH_CHECKPOINTS = ("pretrain",)  # of their own; a pipeline's stages look after theirs
IMPORT_NOTICES = ("OMP_NUM_THREADS set to", "USE OMP_NUM_THREADS WISELY")
VISUALDL_FILES = "*vdlrecords*"
MAX_CHANGES_SHOWN = 8


def run_stage(config: StageConfig, options: RunOptions) -> None:
    """Run `config` to its end in its output folder; errors pass through.

    The folder holds the resolved configuration before anything else is written to it. SIGINT and
    SIGTERM set `options.stop` while the stage runs.
    """
    prepare_folder(config, options)
    threads = configure_threads(config.run.num_threads)
    folder, started = config.run.output_dir, time.monotonic()
    _say(options, f"{config.stage} in {folder}, {threads} thread{'s' if threads > 1 else ''}")
    import_paddle()
    compile_operators()
    with stop_on_signals(options.stop):
        STAGE_RUNNERS[config.stage](config, options)
    _say(options, f"done in {duration(time.monotonic() - started)}; everything is in {folder}")
    if any(config.run.visualdl_dir.rglob(VISUALDL_FILES)):
        logs = config.run.logging_dir or folder
        _say(options, f"curves in a browser: visualdl --logdir {logs} --disable-telemetry")


def check_role(config: StageConfig, role: str | None) -> None:
    """Raise an InputError for a role that the stage does not have."""
    known = STAGE_ROLES.get(config.stage, ())
    if role is not None and role not in known:
        expected = f"one of {', '.join(known)}" if known else "no --role: it is one process"
        raise InputError(f"--role {role}: stage {config.stage} expects {expected}")


def prepare_folder(config: StageConfig, options: RunOptions) -> None:
    """Make the output folder, refuse one that another configuration has begun, save ours."""
    check_resume(options.resume, config.stage)
    folder = config.run.output_dir
    check_ours(folder)
    check_writable(folder, "run.output_dir")
    if config.run.logging_dir is not None:
        check_writable(config.run.logging_dir, "run.logging_dir")
    if options.resume == "auto" and is_started(folder):
        check_same_run(folder, config)
    write_text(folder / CONFIG_FILE, CONFIG_HEADER + dump_yaml(config))


def check_resume(resume: str, stage: str) -> None:
    """`auto`, `never`, or a checkpoint's folder where the stage has checkpoints."""
    if resume in ("auto", "never"):
        return
    if stage not in STAGES_WITH_CHECKPOINTS:
        raise InputError(f"--resume {resume}: stage {stage} expects --resume auto or never")
    if not resume or not (Path(resume) / MANIFEST_FILE).is_file():
        found = "not a checkpoint" if resume and Path(resume).exists() else "no such checkpoint"
        raise InputError(
            f"--resume {resume}: {found}; expected auto, never, or a checkpoint's folder such as "
            "runs/mine/checkpoints/step-00000200"
        )


def check_ours(folder: Path) -> None:
    """InputError for a folder that holds someone else's files where a run would put its own."""
    found = [name for name in REPLACED if (folder / name).exists()]
    if found and not is_started(folder) and not _has_header(folder / CONFIG_FILE):
        raise InputError(
            f"run.output_dir {folder}: holds {', '.join(found)}, which no run wrote and a run "
            "would replace; choose another folder, for example -o run.output_dir=runs/mine"
        )


def check_writable(folder: Path, key: str) -> None:
    """Create `folder` if need be and write a file in it; InputError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"writable")
            stream.flush()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TrainingError(f"{key} {folder}: no space left; free some") from error
        raise InputError(
            f"{key} {folder}: cannot be written: {error.strerror} ({error.filename}); "
            f"choose another folder, for example -o {key}=runs/mine"
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


def import_paddle() -> None:
    """Import Paddle before signal handlers are set: its import replaces that of SIGTERM.

    What it says on the way that is no news to a user is left out: a hint about a cache for
    compiling operators, and one about threads, which are what the run's configuration wants.
    """
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stderr(said):
            warnings.filterwarnings("ignore", message="No ccache found")
            import paddle  # noqa: F401
    finally:
        lines = said.getvalue().splitlines(keepends=True)
        sys.stderr.writelines(
            line for line in lines if not any(notice in line for notice in IMPORT_NOTICES)
        )


def compile_operators() -> None:
    """Before anything is timed: the first run on a machine compiles for up to a minute."""
    from paddle_ernie.ops import library

    library.loaded()


def _has_header(path: Path) -> bool:
    try:
        return path.read_bytes().startswith(CONFIG_HEADER.encode())
    except OSError:
        return False


def _say(options: RunOptions, text: str) -> None:
    options.console.print(text, highlight=False, markup=False, soft_wrap=True)


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
