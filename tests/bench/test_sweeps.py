"""Sweeps become tables, figures and plots."""

from pathlib import Path

from paddle_ernie.bench.sweeps import bench_sweeps
from paddle_ernie.train import bench_sweeps as measured
from paddle_ernie.train.bench import Shapes
from tests.bench.tiny import TINY

SHAPES = Shapes(model=TINY, rows=2, seq_len=16, steps=1, documents_per_row=1)


def test_tables_figures_and_plots(tmp_path: Path, monkeypatch) -> None:
    for name, values in (("experts", (4, 8)), ("seq_len", (8, 32)), ("depth", (2, 3))):
        real = getattr(measured, f"sweep_{name}")

        def short(shapes: Shapes, format_name: str, real=real, values=values):
            return real(shapes, values, format_name)

        monkeypatch.setattr(measured, f"sweep_{name}", short)
    results = bench_sweeps(SHAPES, tmp_path / "plots", "bf16")
    assert [result.name for result in results] == ["sweep_experts", "sweep_seq_len", "sweep_depth"]
    experts = results[0].values
    seconds = [point["seconds"] for point in experts["points"]]
    assert experts["max_over_min"] == max(seconds) / min(seconds)
    assert "goal 1.25" in results[0].table.title
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "step-time-depth.png",
        "step-time-experts.png",
        "step-time-seq-len.png",
    ]
