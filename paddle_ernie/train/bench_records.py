"""What the training benchmarks return; `tools/bench.py` makes tables and JSON of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTime:
    """One kind of step."""

    name: str
    seconds: float
    """Median of a step."""
    seconds_relative: float
    """To the first kind measured."""
    flops_relative: float
    """By the cost model, to the first kind measured."""
    gflops: float
    """Useful work per second."""
    tokens_per_s: float


@dataclass(frozen=True)
class CheckpointSpeed:
    """Writing a checkpoint, beside writing as many bytes to the same disk."""

    megabytes: float
    stall_seconds: float
    """Copying the state: how long training waits."""
    write_seconds: float
    """In the background: files, checksums, sync, rename."""
    disk_seconds: float
    """The same bytes written to one file and synced."""

    @property
    def share_of_disk_speed(self) -> float:
        """Aim: 0.5 or more."""
        return self.disk_seconds / self.write_seconds


@dataclass(frozen=True)
class MemoryUse:
    """Peak memory of a training process of its own."""

    name: str
    measured_bytes: float
    predicted_bytes: float

    @property
    def ratio(self) -> float:
        """Aim: 0.8 to 1.2."""
        return self.measured_bytes / self.predicted_bytes


@dataclass(frozen=True)
class LoaderShare:
    """The loader's part of a step."""

    batch_seconds: float
    step_seconds: float

    @property
    def share(self) -> float:
        """Aim: below 0.02."""
        return self.batch_seconds / (self.batch_seconds + self.step_seconds)


@dataclass(frozen=True)
class TrainBench:
    """All of it."""

    experts: list[StepTime]
    subnets: list[StepTime]
    checkpoint: CheckpointSpeed
    memory: list[MemoryUse]
    loader: LoaderShare | None
