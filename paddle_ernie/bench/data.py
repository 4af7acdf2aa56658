"""`tools/bench.py data`: how fast text becomes batches."""

from dataclasses import asdict
from pathlib import Path

from paddle_ernie.bench.results import Result
from paddle_ernie.data.bench import bench_data as measure
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table


def bench_data(work: Path) -> list[Result]:
    """Tokenising, the cache and the loader."""
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
