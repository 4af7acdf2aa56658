import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table

TABLE = Table(
    "Sizes",
    (Column("model", align="left"), Column("parameters", show=tables.count), Column("x|y")),
    (("full [8, 8]", 9_970_000, 1234), ("a|b", None, 0.123456)),
)


def shown(table: Table) -> str:
    console = Console(file=io.StringIO(), width=100, no_color=True)
    console.print(table.to_rich())
    return console.file.getvalue()


def test_markdown():
    assert TABLE.to_markdown() == (
        "| model       | parameters |   x\\|y |\n"
        "| ----------- | ---------: | -----: |\n"
        "| full [8, 8] |     9.97 M |  1,234 |\n"
        f"| a\\|b        |          {tables.MISSING} | 0.1235 |"
    )


def test_rich_shows_the_same_cells_and_no_markup_is_lost():
    text = shown(TABLE)
    for cell in ("Sizes", "full [8, 8]", "a|b", *(c for row in TABLE.texts for c in row)):
        assert cell in text


def test_row_of_wrong_length_is_named():
    with pytest.raises(ValueError, match="table 'T', row 0: 2 cells"):
        Table("T", (Column("a"),), [(1, 2)])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (950, "950"),
        (999.4, "999.4"),
        (999.6, "1.00 k"),
        (1_234_567, "1.23 M"),
        (9_999_999, "10.0 M"),
        (12_345, "12.3 k"),
        (999_700, "1.00 M"),
        (47e9, "47.0 B"),
        (2.4e12, "2.40 T"),
        (5e15, "5000 T"),
        (-1500, "-1.50 k"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_count(value, expected):
    assert tables.count(value) == expected


@given(st.floats(1, 1e14))
def test_count_is_right_to_three_digits(value):
    number, *unit = tables.count(value).split()
    scale = 1000 ** tables.DECIMAL_PREFIXES.index(unit[0] if unit else "")
    assert float(number.replace(",", "")) * scale == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.25, "0.25 s"),
        (42.4, "42 s"),
        (75, "1 min 15 s"),
        (3599.7, "1 h 0 min"),
        (3700, "1 h 2 min"),
        (math.inf, "inf"),
    ],
)
def test_duration(seconds, expected):
    assert tables.duration(seconds) == expected


def test_other_formats():
    assert tables.size(4.5e9) == "4.50 GB"
    assert tables.size(12) == "12 B"
    assert tables.rate(12_345) == "12.3 k tokens/s"
    assert tables.percent(0.358) == "35.8 %"
    assert tables.bits(3.2134) == "3.213"
    assert tables.plain(1234.0) == "1,234"
    assert tables.plain(math.nan) == "nan"
