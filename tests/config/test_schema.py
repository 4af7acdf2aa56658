"""The editor schema accepts what the loader accepts and refuses misspelt keys and wrong types."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paddle_ernie.config.base import Section
from paddle_ernie.config.schema import json_schema, main
from paddle_ernie.config.source import parse_yaml
from paddle_ernie.config.stages import STAGES

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs").rglob("*.yaml"))
SMALL = {
    "stage": "pretrain",
    "run": {"output_dir": "out"},
    "model": {},
    "data": {"sources": [{"format": "python_stdlib"}]},
    "train": {"max_steps": 3},
}


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_the_project_are_valid(validator: Any, path: Path) -> None:
    validator.validate(parse_yaml(path.read_text(), str(path)).value)


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"train": {"max_steps": 3, "learning_rate": 1}}, True),
        ({"train": {"max_step": 3}}, False),
        ({"train": {"max_steps": -3}}, False),
        ({"train": {"max_steps": "3"}}, False),
        ({"train": {}}, False),
        ({"stage": "extract"}, False),
        ({"stage": "nonsense"}, False),
        ({"elastc": {}}, False),
        ({"eval": {"subnets": {"a": {"layers": [0, 1]}}}}, True),
        ({"eval": {"subnets": {"a": {"layers": "x"}}}}, False),
    ],
)
def test_single_stage(validator: Any, change: dict[str, Any], valid: bool) -> None:
    assert validator.is_valid({**SMALL, **change}) == valid


def test_an_error_points_at_the_wrong_key(validator: Any) -> None:
    (error,) = validator.iter_errors({**SMALL, "train": {"max_steps": 3, "max_step": 4}})
    assert list(error.absolute_path) == ["train"] and "'max_step'" in error.message


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ({"base": "a.yaml"}, True),
        ({"base": "a.yaml", "train": {"learning_rate": 1e-3}}, True),
        ({"base": "a.yaml", "stage": "pretrain", "eval": {}}, True),
        ({"base": "a.yaml", "train": {"max_step": 3}}, False),
        ({"base": 3}, False),
        ({"train": {"max_steps": 3}}, False),
        ({"base": "a.yaml", "stages": [{"kind": "report", "name": "r"}]}, True),
        ({"base": "a.yaml", "stages": [{"name": "r"}]}, False),
    ],
)
def test_files_with_a_parent_may_leave_things_out(
    validator: Any, value: dict[str, Any], valid: bool
) -> None:
    assert validator.is_valid(value) == valid


def sections(schema: type[Section], seen: set[type[Section]]) -> set[type[Section]]:
    from paddle_ernie.config.fields import _members, is_section

    if schema in seen:
        return seen
    seen.add(schema)
    for field in schema.model_fields.values():
        for member in _members(field.annotation):
            arguments = [member, *(m for a in getattr(member, "__args__", ()) for m in _members(a))]
            for argument in arguments:
                if is_section(argument):
                    sections(argument, seen)
    return seen


def test_every_key_is_described() -> None:
    found: set[type[Section]] = set()
    for stage in STAGES.values():
        sections(stage, found)
    assert len(found) > 15
    definitions = json_schema()["$defs"]
    for schema in found:
        for name in schema.model_fields:
            shown = definitions[schema.__name__]["properties"][name]
            target = definitions.get(shown.get("$ref", "").rpartition("/")[2], {})
            assert shown.get("description") or target.get("description"), (schema, name)


def test_the_module_prints_and_writes_the_schema(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paddle_ernie.config.schema"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == json_schema()
    main(["--output", str(tmp_path / "schema.json")])
    assert (tmp_path / "schema.json").read_text() == shown
