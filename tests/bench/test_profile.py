"""The profile's table."""

from paddle_ernie.bench.profile import bench_profile
from paddle_ernie.train.bench import Shapes
from tests.bench.tiny import TINY


def test_the_title_is_the_sum_of_the_rows() -> None:
    shapes = Shapes(model=TINY, rows=2, seq_len=16, steps=1)
    (result,) = bench_profile(shapes, format_name="bf16")
    total = sum(row["seconds"] for row in result.values)
    assert result.table.title.startswith(f"A step of {total * 1000:.1f} ms")
    assert {row["phase"] for row in result.values} == {"step", "forward", "backward", "update"}
