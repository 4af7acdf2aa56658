"""From pydantic's locations to paths in the file, and how values and choices are shown."""

from typing import Any

import pytest

from paddle_ernie.config.faults import Fault, fault_error, nearest, shown, value_at, value_path
from paddle_ernie.config.source import parse_yaml

PIPELINE = {
    "stages": [
        {"kind": "extract", "extract": {"subnet": {"layers": [0, "x"]}}},
        {"kind": "pretrain", "pretrain": 1},
    ]
}


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        (("stages", 0, "extract", "extract", "subnet"), ("stages", 0, "extract", "subnet")),
        (("stages", 0, "extract", "name"), ("stages", 0, "name")),
        (("stages", 1, "pretrain", "pretrain"), ("stages", 1, "pretrain")),
        (("stages", 1), ("stages", 1)),
        (
            ("stages", 0, "extract", "extract", "subnet", "layers", "list[int]", 1),
            ("stages", 0, "extract", "subnet", "layers", 1),
        ),
        (
            ("stages", 0, "extract", "extract", "subnet", "layers", "int"),
            ("stages", 0, "extract", "subnet", "layers"),
        ),
        (("run", "output_dir"), ("run",)),  # absent: the section that should have it
        ((), ()),
    ],
)
def test_labels_of_unions_are_no_part_of_a_path(loc: tuple, path: tuple) -> None:
    assert value_path(loc, PIPELINE) == path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("cosin", "cosin"),
        ("3", '"3"'),
        ("true", '"true"'),
        ("", '""'),
        (" a", '" a"'),
        ("a\nb", '"a\\nb"'),
        (3, "3"),
        (None, "null"),
        (True, "true"),
        ([1, "é"], '[1, "é"]'),
        ("x" * 61, "x" * 57 + "..."),
    ],
)
def test_values_are_shown_as_yaml_writes_them(value: Any, text: str) -> None:
    assert shown(value) == text


def test_nearest() -> None:
    assert nearest("Max_Step", ["max_steps", "min_k"]) == "max_steps"
    assert nearest("zzz", ["max_steps", "min_k"]) is None


def test_value_at() -> None:
    assert value_at(("stages", 1, "pretrain"), PIPELINE) == 1
    absent = value_at(("stages", 2), PIPELINE)
    assert absent is value_at(("stages", "x"), PIPELINE) is value_at(("x",), None)


def test_a_fault_that_is_found_twice_is_shown_once() -> None:
    document = parse_yaml("b: 1\na: 2\n", "f")
    faults = [Fault(("a",), "wrong"), Fault(("b",), "wrong"), Fault(("a",), "wrong")]
    assert str(fault_error("f", faults, document)) == (
        "f: 2 faults\nf:1  b = 1\n    wrong\nf:2  a = 2\n    wrong"
    )
