"""`tools/bench.py train --around`: sub-models, checkpoints, memory, the loader's share."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from paddle_ernie.bench.results import Result
from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig
from paddle_ernie.data.corpus import prepare_corpus
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.train.bench import Shapes
from paddle_ernie.train.bench import bench_train as measure
from paddle_ernie.train.bench_records import StepTime, TrainBench

BENCH_SOURCE_BYTES = 8_000_000  # text for the loader's share: enough rows, seconds to tokenise


def bench_around(work: Path) -> list[Result]:
    """Step time against experts and sub-models, checkpoints, memory, the loader's share."""
    shapes = Shapes()
    source = SourceConfig(format="python_stdlib", max_bytes=BENCH_SOURCE_BYTES)
    tokenizer = TokenizerConfig(vocab_size=shapes.model.vocab_size or 0)
    data = DataConfig(sources=[source], tokenizer=tokenizer, max_seq_len=shapes.seq_len)
    corpus = prepare_corpus(data, cache_dir=work / "cache")
    loader = TrainLoader(corpus, max_seq_len=shapes.seq_len, global_batch_size=shapes.rows, seed=1)
    found = measure(work, corpus.tokenizer, loader=loader, shapes=shapes)
    return [
        Result(
            "experts",
            _step_table("Step time against experts (goal: at most 1.25)", found.experts),
            [asdict(step) for step in found.experts],
        ),
        Result(
            "subnets",
            _step_table("Step time of sub-models (goal: as their FLOPs)", found.subnets),
            [asdict(step) for step in found.subnets],
        ),
        _around_the_steps(found),
    ]


def _around_the_steps(found: TrainBench) -> Result:
    share, checkpoint = found.loader, found.checkpoint
    assert share is not None, "a loader was given"
    rows = [
        ("checkpoint", tables.size(checkpoint.megabytes * 1e6), "weights and two moments"),
        ("  training waits", f"{checkpoint.stall_seconds:.2f} s", "copying"),
        ("  written in", f"{checkpoint.write_seconds:.2f} s", "in the background"),
        ("  share of disk speed", tables.percent(checkpoint.share_of_disk_speed), "goal: 50 %"),
        ("loader's share of a step", f"{100 * share.share:.3f} %", "goal: below 2 %"),
    ]
    for memory in found.memory:
        note = f"{memory.ratio:.2f} of what --dry-run says; goal: 0.8 to 1.2"
        rows.append((f"peak memory ({memory.name})", tables.size(memory.measured_bytes), note))
    columns = (Column("", align="left"), Column("measured"), Column("", align="left"))
    speed = {**asdict(checkpoint), "share_of_disk_speed": checkpoint.share_of_disk_speed}
    values = {
        "checkpoint": speed,
        "memory": [{**asdict(memory), "ratio": memory.ratio} for memory in found.memory],
        "loader": {**asdict(share), "share": share.share},
    }
    return Result("training", Table("Around the steps", columns, rows), values)


def _step_table(title: str, steps: Sequence[StepTime]) -> Table:
    columns = (
        Column("", align="left"),
        Column("step"),
        Column("time, relative"),
        Column("FLOPs, relative"),
        Column("GFLOP/s"),
        Column("tokens/s", show=tables.count),
    )
    rows = [
        (
            step.name,
            f"{step.seconds * 1000:.0f} ms",
            f"{step.seconds_relative:.2f}",
            f"{step.flops_relative:.2f}",
            f"{step.gflops:.0f}",
            step.tokens_per_s,
        )
        for step in steps
    ]
    return Table(title, columns, rows)
