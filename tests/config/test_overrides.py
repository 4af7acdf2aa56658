"""`-o key=value`: where it lands, what it may not touch, and what it says when it cannot."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.config.overrides import apply_override
from paddle_ernie.config.source import Document, Place, dump_plain, parse_yaml
from paddle_ernie.utils.errors import ConfigError

TEXT = """\
train: {max_steps: 20}
model:
list: [1, 2, 3]
stages:
- {name: first, train: {max_steps: 1}}
- {name: second, train: {max_steps: 2}}
"""


@pytest.fixture
def document() -> Document:
    return parse_yaml(TEXT, "f.yaml")


@pytest.mark.parametrize(
    ("override", "keys", "value"),
    [
        ("train.max_steps=5", ("train", "max_steps"), 5),
        ("train.learning_rate=1e-3", ("train", "learning_rate"), 1e-3),
        ("model.hidden_size=8", ("model", "hidden_size"), 8),
        ("new.deep.key=[1, a]", ("new", "deep", "key"), [1, "a"]),
        ("train={max_steps: 3}", ("train",), {"max_steps": 3}),
        ("list.1=x", ("list", 1), "x"),
        ("stages.0.train.max_steps=7", ("stages", 0, "train", "max_steps"), 7),
        ("stages.second.train.max_steps=8", ("stages", 1, "train", "max_steps"), 8),
        ("train.max_steps=", ("train", "max_steps"), None),
        ("train.text=a=b", ("train", "text"), "a=b"),
        (" train.max_steps = 5 ", ("train", "max_steps"), 5),
    ],
)
def test_where_a_value_lands(
    document: Document, override: str, keys: tuple[str | int, ...], value: object
) -> None:
    result = apply_override(document, override)
    found = result.value
    for key in keys:
        found = found[key]
    assert found == value
    assert result.place(keys) == Place(f"-o {override}")


def test_nothing_else_changes(document: Document) -> None:
    before = copy.deepcopy(document)
    result = apply_override(document, "stages.second.train.max_steps=8")
    assert document == before
    result.value["stages"][1]["train"]["max_steps"] = 2
    assert result.value == before.value
    changed = ("stages", 1, "train", "max_steps")
    assert {p: at for p, at in result.places.items() if p != changed} == {
        p: at for p, at in before.places.items() if p != changed
    }


def test_a_later_override_wins(document: Document) -> None:
    result = apply_override(apply_override(document, "train={max_steps: 1}"), "train.max_steps=2")
    assert result.value["train"] == {"max_steps": 2}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.max_steps", "expected KEY=VALUE"),
        ("=5", "expected KEY=VALUE"),
        ("train..max_steps=5", "expected KEY=VALUE"),
        ("a=[1", "not valid YAML"),
        ("a={b: 1, b: 2}", "the key 'b' is written twice; keep one of them"),
        ("base=x.yaml", "`base` can only stand in a file"),
        ("train.max_steps.deep=1", "`train.max_steps` is 20, which has no key `deep`"),
        ("list.3=1", "`list` has no entry '3'; expected 0 to 2"),
        ("list.-1=1", "`list` has no entry '-1'"),
        ("stages.secnd.train=1", "a name of first, second; did you mean `second`?"),
    ],
)
def test_what_cannot_be_set(document: Document, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override(document, override)
    assert str(caught.value).startswith(f"-o {override}: ") and words in str(caught.value)


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    st.integers() | st.lists(st.integers(), max_size=3),
)
def test_any_path_of_new_keys_can_be_set(keys: list[str], value: object) -> None:
    text = dump_plain([value]).removeprefix("- ") if isinstance(value, int) else str(value)
    found = apply_override(Document({}), f"{'.'.join(keys)}={text}").value
    for key in keys:
        found = found[key]
    assert found == value
