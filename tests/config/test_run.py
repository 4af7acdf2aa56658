"""Where a run's dashboards go."""

from pathlib import Path

from paddle_ernie.config.run import RunConfig


def test_visualdl_dir() -> None:
    assert RunConfig(output_dir="out").visualdl_dir == Path("out/visualdl")
    assert RunConfig(output_dir="out", logging_dir="logs").visualdl_dir == Path("logs")
