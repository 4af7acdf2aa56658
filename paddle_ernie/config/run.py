"""`run:` where a run writes, its seed, and how many threads it uses."""

from pathlib import Path

from pydantic import Field

from paddle_ernie.config.base import Section, UserPath


class RunConfig(Section):
    """Settings of the run as a whole."""

    output_dir: UserPath
    """Folder of the run: resolved config, checkpoints, metrics, reports."""
    logging_dir: UserPath | None = None
    """Folder of the VisualDL records; null means `<output_dir>/visualdl`."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of initial weights, data order, sampled subnets and text samples."""
    num_threads: int | None = Field(None, ge=1, le=4096)
    """Threads for tensor operations; null takes OMP_NUM_THREADS if the shell sets it, else
    every core this process may run on."""

    @property
    def visualdl_dir(self) -> Path:
        """Where VisualDL records go."""
        return self.logging_dir or self.output_dir / "visualdl"
