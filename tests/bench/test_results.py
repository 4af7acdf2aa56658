"""The benchmark tool: figures appear in its table and, under the same names, in its JSON file."""

import io
import json

import pytest
from rich.console import Console

from paddle_ernie.bench.results import Result, fill, show, to_json
from paddle_ernie.monitor.tables import Column, Table


def test_figures_are_shown_and_saved_with_the_machine() -> None:
    table = Table("Speed", (Column("", align="left"), Column("MB/s")), [("reading", 12.5)])
    results = [Result("speed", table, {"reading": 12.5})]
    console = Console(file=io.StringIO(), width=80)
    show(results, console)
    assert "Speed" in console.file.getvalue() and "12.5" in console.file.getvalue()
    saved = json.loads(json.dumps(to_json("data", 2, results)))
    assert saved["speed"] == {"reading": 12.5}
    assert saved["bench"] == "data" and saved["machine"]["threads"] == 2
    assert saved["machine"]["python"]


def test_a_page_takes_the_tables_it_has_room_for() -> None:
    table = Table("Speed", (Column("MB/s"),), [(12.5,)])
    page = "# Speed\n<!-- a -->\nold\n<!-- /a -->\nrest <!-- b -->\n"
    filled = fill(page, [Result(name, table, {}) for name in "abc"])
    assert filled == f"# Speed\n<!-- a -->\n{table.to_markdown()}\n<!-- /a -->\nrest <!-- b -->\n"
    assert fill(filled, [Result("a", table, {})]) == filled


@pytest.mark.slow
def test_the_tool_measures_the_data_path(run_tool, tmp_path) -> None:
    path = tmp_path / "data.json"
    done = run_tool("bench.py", "data", "--json", path, "--work-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())["data"]
    assert figures["bytes_per_token"] > 2
    assert figures["loader_milliseconds"] > 0
    assert f"{figures['one_core_mb_per_second']:.2f} MB/s" in done.stdout
    assert sorted(tmp_path.iterdir()) == [path]  # the working folder is gone


def test_what_cannot_be_measured_is_refused(run_tool) -> None:
    done = run_tool("bench.py", "weather")
    assert done.returncode == 2
    assert "weather" in done.stderr
