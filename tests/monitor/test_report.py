import json
import math

import numpy as np
import pytest

from paddle_ernie.monitor.report import Report
from paddle_ernie.monitor.tables import Column, Table


def test_parts_appear_in_order_and_files_agree(tmp_path):
    report = Report("Run")
    report.heading("First")
    report.text("Some *text*.")
    report.table(Table("Sizes", (Column("n"),), [(1,)]), "Read it so.")
    report.figure("curve", lambda path: path.write_bytes(b"png") and None, "A [curve].")
    report.code("a\n```\nb")
    report.number("bpb.full", np.float32(2.5))
    report.add_numbers("params", {"total": 10, "active": math.nan})
    assert report.write(tmp_path / "out") == tmp_path / "out" / "report.md"
    assert (tmp_path / "out" / "report.md").read_text() == (
        "# Run\n\n## First\n\nSome *text*.\n\n"
        "**Sizes**\n\n|   n |\n| --: |\n|   1 |\n\n*Read it so.*\n\n"
        "![A curve.](report_figures/curve.png)\n\n*A [curve].*\n\n"
        "````text\na\n```\nb\n````\n"
    )
    assert (tmp_path / "out" / "report_figures" / "curve.png").read_bytes() == b"png"
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == {
        "format": 1,
        "bpb.full": 2.5,
        "params.total": 10,
        "params.active": None,
    }


def test_a_figure_that_fails_leaves_the_old_report(tmp_path):
    old = Report("Old")
    old.number("a", 1)
    old.write(tmp_path)
    new = Report("New")
    new.number("a", 2)
    new.figure("broken", lambda path: path.open("r", encoding="no-such-codec"), "x")
    with pytest.raises(LookupError):
        new.write(tmp_path)
    assert (tmp_path / "report.md").read_text().startswith("# Old")
    assert json.loads((tmp_path / "report.json").read_text())["a"] == 1
    assert not list(tmp_path.rglob("*broken*"))


@pytest.mark.parametrize("name", ["", "a b", ".a", "a..b", "format", "a/b"])
def test_names_that_are_not_dotted_words_are_refused(name):
    with pytest.raises(ValueError, match=r"report\.json name"):
        Report("x").number(name, 1.0)


def test_names_are_given_once():
    report = Report("x")
    report.number("a.b", 1.0)
    with pytest.raises(ValueError, match=r"'a\.b' is given twice: 1\.0 and 2\.0"):
        report.number("a.b", 2.0)
    report.figure("f", lambda path: None, "x")
    with pytest.raises(ValueError, match="is taken"):
        report.figure("f", lambda path: None, "x")
