from pathlib import Path

import pytest

from paddle_ernie.monitor import dashboards
from paddle_ernie.monitor.dashboards import AREAS, find_metric

DOCS = Path(__file__).parents[2] / "docs" / "monitoring.md"


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("loss/train", "loss/train"),
        ("moe/layer_03/load", "moe/layer_<layer>/load"),
        ("moe/layer_12/load_max_over_mean", "moe/layer_<layer>/load_max_over_mean"),
        ("eval/depth-6/bpb", "eval/<subnet>/bpb"),
        ("samples/0", "samples/<i>"),
    ],
)
def test_names_of_a_run_find_their_metric(name, declared):
    assert find_metric(name).name == declared


@pytest.mark.parametrize("name", ["loss/trains", "eval/a/b/bpb", "moe/layer_x/load", "samples/"])
def test_other_names_find_none(name):
    assert find_metric(name) is None


def test_declarations_are_unique_and_grouped_by_their_area():
    metrics = [(area.name, metric.name) for area in AREAS for metric in area.metrics]
    assert len({name for _, name in metrics}) == len(metrics)
    assert all(name.startswith(f"{area}/") for area, name in metrics)


def test_docs_list_exactly_the_declared_metrics():
    page = DOCS.read_text(encoding="utf-8")
    command = "python -m paddle_ernie.monitor.dashboards docs/monitoring.md"
    assert dashboards.with_metrics(page) == page, f"run: {command}"


def test_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="lacks its markers"):
        dashboards.with_metrics("# Monitoring")
