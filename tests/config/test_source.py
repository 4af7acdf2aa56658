"""YAML with places: YAML 1.2 scalars, exact lines, and clear errors for what is not a mapping."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.config.source import Place, dump_plain, parse_yaml, reads_as_text
from paddle_ernie.utils.errors import ConfigError

TRICKY_TEXT = st.sampled_from(
    [
        "1e5",
        "yes",
        "on",
        "null",
        "~",
        "",
        "0x1F",
        "0o7",
        "12_3",
        ".5",
        "1:30",
        "a: b",
        "# x",
        "-",
        "2024-01-01",
        " padded ",
        "line\nline",
        "tab\there",
        "Ünï",
        "漢字",
        "'",
        '"',
        "<<",
        "=",
        ".inf",
    ]
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False)
    | TEXT
    | TRICKY_TEXT
)
KEY = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=6)
PLAIN = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E-3", 1e-3),
        ("1.5e2", 150.0),
        ("2.", 2.0),
        (".5", 0.5),
        ("16e6", 16_000_000),
        ("-1e3", -1000),
        ("16_000_000", 16_000_000),
        ("0x10", 16),
        ("0o17", 15),
        ("017", 17),
        ("+3", 3),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("=", "="),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}", "x.yaml").value["a"]
    assert found == value and type(found) is type(value)


def test_an_exponent_makes_an_integer_only_where_it_is_exact() -> None:
    values = parse_yaml("[1e6, 1e-6, 1.0e6, 1e300]", "x").value
    assert [type(value) for value in values] == [int, float, float, float]


@given(PLAIN)
def test_what_is_dumped_is_read_back(value: object) -> None:
    assert parse_yaml(dump_plain({"a": value}), "x").value == {"a": value}


@given(st.dictionaries(KEY, PLAIN, max_size=5), st.booleans())
def test_places_are_the_lines_of_the_keys(value: dict, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, width=20)
    document = parse_yaml(text, "x.yaml")
    lines = text.split("\n")
    for path, place in document.places.items():
        assert place.source == "x.yaml" and place.line is not None
        if path and isinstance(path[-1], str):
            assert path[-1] in lines[place.line - 1]


def test_places_of_an_example() -> None:
    document = parse_yaml("\n# note\na:\n  b:\n  - 7\n  - {c: 8}\n", "x.yaml")
    lines = {path: place.line for path, place in document.places.items()}
    assert lines == {
        (): 1,
        ("a",): 3,
        ("a", "b"): 4,
        ("a", "b", 0): 5,
        ("a", "b", 1): 6,
        ("a", "b", 1, "c"): 6,
    }
    assert document.place(("a", "b", 1, "absent")) == Place("x.yaml", 6)


def test_merge_keys_yield_to_keys_written_out() -> None:
    text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz:\n  <<: [*x, *y]\n  a: 9\n"
    assert parse_yaml(text, "f").value["z"] == {"a": 9, "b": 2, "c": 4}


def test_merge_keys_chain() -> None:
    text = "x: &x {a: 1}\ny: &y {<<: *x, b: 2}\nz: {<<: *y, c: 3}\n"
    assert parse_yaml(text, "f").value["z"] == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", ["f:4", "'b.c'", "twice", "line 3"]),
        ("a: [1, 2\nb: 3\n", ["f:2", "not valid YAML", "which starts on line 1"]),
        ("a: 1\n\tb: 2\n", ["f:2", "not valid YAML", "spaces, not tabs"]),
        ("a: b: c\n", ["f:1", "not valid YAML", "mapping values", "followed by a space"]),
        ("a: *.py\n", ["f:1", "not valid YAML", "starts with * or & needs quotes"]),
        ("a: @x\n", ["f:1", "not valid YAML", "starts with this character needs quotes"]),
        ('a: 1\nb: "\\ud800"\n', ["f:2", "half of a surrogate pair"]),
        ('"\\ud800": 1\n', ["f:1", "half of a surrogate pair"]),
        (f"a: {'9' * 5000}\n", ["f:1", "a number of 5,000 digits is too long"]),
        ("a: 1\n---\nb: 2\n", ["f:2", "single document"]),
        ("a: *nothing\n", ["f:1", "alias"]),
        ("a: &a [*a]\n", ["f:1", "contains itself"]),
        ("a: &a {<<: *a}\n", ["f:1", "`<<` takes an alias"]),
        ("a:\n  <<: 3\n", ["f:2", "`<<` takes an alias"]),
        ("a: 1\n2: 3\n", ["f:2", "'2'", "expected text"]),
        ("? [a]\n: 3\n", ["f:1", "a list or mapping", "expected text"]),
        ("a: !!python/object:os.system x\n", ["f:1", "python/object", "not supported"]),
        ("a: !!int seven\n", ["f:1", "'seven'", "not a number"]),
        ("a: 1\nb: \x00\n", ["f:2", "not text", "0x0"]),
        ("[" * 5000 + "]" * 5000, ["f: ", "nested too deeply"]),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    for word in words:
        assert word in str(caught.value)


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="once aliases expand"):
        parse_yaml("\n".join(lines), "f")


@given(TEXT | TRICKY_TEXT)
def test_reads_as_text_agrees_with_the_parser(text: str) -> None:
    if reads_as_text(text) and text.isalnum():
        assert parse_yaml(text, "f").value == text
    if not reads_as_text(text) and text == text.strip():
        assert not isinstance(parse_yaml(text, "f").value, str)
