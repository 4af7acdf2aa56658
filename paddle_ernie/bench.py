"""The benchmarks behind `tools/bench.py`: one function each, results as tables and as JSON.

Each returns a list of tables; a table's rows are the figures. `to_json` keeps the same figures
under the tables' and columns' names, with a description of the machine.
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.utils.threads import cpu_model

if TYPE_CHECKING:
    from paddle_ernie.train.bench_records import TrainBench

BENCH_SOURCE_BYTES = 8_000_000  # text for the loader's share: enough rows, seconds to tokenise


@dataclass(frozen=True)
class Result:
    """One measurement."""

    name: str
    """Key in the JSON file."""
    table: Table
    """For people."""
    values: Any
    """For programs: a dictionary, or a list of them."""


def bench_data(work: Path) -> list[Result]:
    """Tokenising, the cache and the loader."""
    from paddle_ernie.data.bench import bench_data as measure

    found = measure(work)
    rows = [
        ("text", tables.size(found.text_megabytes * 1e6), ""),
        ("bytes per token", f"{found.bytes_per_token:.2f}", f"{found.vocab_size:,} entries"),
        ("training the tokenizer", tables.duration(found.tokenizer_seconds), ""),
        ("tokenising, 1 core", f"{found.one_core_mb_per_second:.2f} MB/s", "goal: 2 MB/s"),
        (
            f"tokenising, {found.cores} cores",
            f"{found.all_cores_mb_per_second:.2f} MB/s",
            "read, hash, deduplicate, tokenise, write",
        ),
        ("opening a finished cache", f"{found.warm_start_seconds:.2f} s", "checksums included"),
        (
            "one batch",
            f"{found.loader_milliseconds:.2f} ms",
            f"{found.batch_rows} rows of {found.max_seq_len} tokens",
        ),
    ]
    columns = (Column("", align="left"), Column("measured"), Column("", align="left"))
    return [Result("data", Table("Data", columns, rows), asdict(found))]


def bench_train(work: Path) -> list[Result]:
    """Step time against experts and sub-models, checkpoints, memory, the loader's share."""
    from paddle_ernie.config.data import DataConfig, SourceConfig, TokenizerConfig
    from paddle_ernie.data.corpus import prepare_corpus
    from paddle_ernie.data.loader import TrainLoader
    from paddle_ernie.train.bench import Shapes
    from paddle_ernie.train.bench import bench_train as measure

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


def _around_the_steps(found: "TrainBench") -> Result:
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


BENCHES: dict[str, Callable[[Path], list[Result]]] = {"data": bench_data, "train": bench_train}


def show(results: Sequence[Result], console: Console) -> None:
    """Print the tables."""
    for result in results:
        console.print(result.table.to_rich())


def to_json(what: str, threads: int, results: Sequence[Result]) -> dict[str, Any]:
    """The figures and the machine they were measured on."""
    return {
        "format": 1,
        "bench": what,
        "machine": {
            "cpu": cpu_model(),
            "threads": threads,
            "system": platform.platform(terse=True),
            "python": platform.python_version(),
        },
        **{result.name: result.values for result in results},
    }


def _step_table(title: str, steps: Sequence[Any]) -> Table:
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
