"""Whether a run folder may be continued with a changed configuration.

A run that goes on must compute what it would have computed: the same model, data, seed, batch and
optimizer. How long it runs, how often it logs, saves and evaluates, and how it uses the machine may
change at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from paddle_ernie.config.faults import shown
from paddle_ernie.config.source import KeyPath, Plain, dotted

FREE_KEYS = (
    "run.output_dir",  # the folder was moved or is named by another path
    "run.logging_dir",
    "run.num_threads",
    "data.cache_dir",
    "data.num_workers",
    "train.max_steps",
    "train.decay_steps",  # the tail of a run that was made longer or shorter
    "train.micro_batch_size",  # accumulation: the same sums in another order
    "train.recompute",
    "train.max_nonfinite_steps",
    "checkpoint.*",
    "eval.*",
    "monitor.*",
)


@dataclass(frozen=True)
class Change:
    """One key whose value is not what the run folder was started with."""

    path: KeyPath
    before: Plain
    after: Plain

    @property
    def is_free(self) -> bool:
        """Whether a run may go on in spite of it."""
        return any(fnmatchcase(dotted(self.path), pattern) for pattern in FREE_KEYS)

    def __str__(self) -> str:
        return f"{dotted(self.path)}: was {shown(self.before)}, now {shown(self.after)}"


def changes(before: Plain, after: Plain, path: KeyPath = ()) -> Iterator[Change]:
    """Where two resolved configurations differ, innermost keys.

    Keys that only one of two sections has are passed over: another version of the program wrote
    that one, and the key's default is what the other does.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key in after:
                yield from changes(before[key], after[key], (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changes(old, new, (*path, index))
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield Change(path, before, after)
