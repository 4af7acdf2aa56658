"""The errors a user can cause, and the exit code each one ends the program with.

Every message says where, what was found, what was expected and what to do, always with the value.
`tools/*.py` turn them into one screen of text and an exit code; anything else is a bug and shows
its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `tools/train.py` and its siblings return to the shell."""

    DONE = 0
    FAILURE = 1
    """The run failed: disk full, non-finite losses, a corrupt checkpoint with no older one."""
    BAD_INPUT = 2
    """The configuration, a path or the data is wrong; nothing was started."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM; a checkpoint was saved first."""


class PaddleErnieError(Exception):
    """Base of the errors that end a run with a message instead of a traceback."""

    exit_code = ExitCode.FAILURE


class InputError(PaddleErnieError):
    """A config key, path, file or value given by the user cannot be used."""

    exit_code = ExitCode.BAD_INPUT


class ConfigError(InputError):
    """One or more faults in a configuration file, all of them reported together."""


class DataError(InputError):
    """A data source is missing, empty, undecodable or too small."""


class CheckpointError(PaddleErnieError):
    """A checkpoint or model directory is missing, incomplete or altered."""


class TrainingError(PaddleErnieError):
    """Training cannot go on (too many non-finite steps, full disk)."""


class Interrupted(PaddleErnieError):  # noqa: N818  nothing went wrong
    """SIGINT or SIGTERM arrived; the run's state is on disk."""

    exit_code = ExitCode.INTERRUPTED
