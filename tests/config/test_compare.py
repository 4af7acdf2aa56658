"""What may change in a run folder: length, logging, saving, evaluation; nothing computed."""

from typing import Any

import pytest

from paddle_ernie.config.compare import FREE_KEYS, changes
from paddle_ernie.config.loader import plain
from paddle_ernie.config.source import dotted
from paddle_ernie.config.stages import PretrainConfig

BEFORE: dict[str, Any] = {
    "stage": "pretrain",
    "run": {"output_dir": "out"},
    "model": {},
    "data": {"sources": [{"path": "a"}, {"path": "b"}]},
    "train": {"max_steps": 10},
    "elastic": {},
}


def found(**sections: Any) -> dict[str, bool]:
    """Changed keys against BEFORE, and whether each is free."""
    before = plain(PretrainConfig(**BEFORE))
    after = plain(PretrainConfig(**{**BEFORE, **sections}))
    return {dotted(change.path): change.is_free for change in changes(before, after)}


def test_equal_configurations_have_no_changes() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("section", "value", "expected"),
    [
        ("train", {"max_steps": 20}, {"train.max_steps": True}),
        ("train", {"max_steps": 10, "global_batch_size": 8}, {"train.global_batch_size": False}),
        ("train", {"max_steps": 10, "micro_batch_size": 4}, {"train.micro_batch_size": True}),
        ("train", {"max_steps": 10, "learning_rate": 2e-3}, {"train.learning_rate": False}),
        ("run", {"output_dir": "moved"}, {"run.output_dir": True}),
        ("run", {"output_dir": "out", "seed": 2}, {"run.seed": False}),
        (
            "checkpoint",
            {"keep": 5, "save_steps": 7},
            {"checkpoint.keep": True, "checkpoint.save_steps": True},
        ),
        ("monitor", {"sample_prompts": ["a"]}, {"monitor.sample_prompts": True}),
        ("model", {"hidden_size": 64}, {"model.hidden_size": False}),
        ("elastic", None, {"elastic": False}),
        ("elastic", {"depth": {"min_layers": 2}}, {"elastic.depth.min_layers": False}),
        ("data", {"sources": [{"path": "a"}]}, {"data.sources": False}),
        ("data", {"sources": [{"path": "a"}, {"path": "c"}]}, {"data.sources.1.path": False}),
    ],
)
def test_what_is_free(section: str, value: Any, expected: dict[str, bool]) -> None:
    assert found(**{section: value}) == expected


def test_named_subnets_may_come_and_change() -> None:
    changed = found(eval={"subnets": {"small": {"layers": 2}}})
    assert all(changed.values())


def test_free_keys_exist() -> None:
    known = plain(PretrainConfig(**BEFORE))
    for pattern in FREE_KEYS:
        section, key = pattern.split(".")
        assert section in known and (key == "*" or key in known[section]), pattern


def test_a_key_of_another_version_is_passed_over() -> None:
    assert list(changes({"a": 1, "old": 2}, {"a": 1, "new": 3})) == []


def test_true_is_not_one() -> None:
    (change,) = changes({"a": True}, {"a": 1})
    assert str(change) == "a: was true, now 1"
