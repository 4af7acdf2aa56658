"""`tools/bench.py train --profile`: a table of where a step's time goes."""

from dataclasses import asdict

from paddle_ernie.bench.results import Result
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.train.bench import WARMUP_STEPS, Shapes, make_stepper, random_batch
from paddle_ernie.train.bench_profile import profile_steps


def bench_profile(
    shapes: Shapes, *, format_name: str = "fp32", by_shape: bool = False
) -> list[Result]:
    """Where a training step in one format spends its time."""
    stepper = make_stepper(shapes.model, shapes, format_name=format_name)
    batch = random_batch(shapes)
    found = profile_steps(stepper, batch, steps=shapes.steps, warmup=WARMUP_STEPS, shapes=by_shape)
    cells = [
        (row.phase, row.name, row.calls, f"{row.seconds * 1000:.2f}", tables.percent(row.share))
        for row in found
    ]
    step = sum(row.seconds for row in found)
    title = f"A step of {step * 1000:.1f} ms, {shapes.rows * shapes.seq_len / step:,.0f} tokens/s"
    columns = (
        Column("phase", align="left"),
        Column("what", align="left"),
        Column("calls"),
        Column("ms"),
        Column("share"),
    )
    return [Result("profile", Table(title, columns, cells), [asdict(row) for row in found])]
