"""JSON schema of the YAML files, for completion and checks in editors.

    python -m paddle_ernie.config.schema --output schema.json

A file with a `base` may leave out whatever its parent has; any other file is complete in itself.
"""

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from paddle_ernie.config.stages import STAGES, StageConfig
from paddle_ernie.utils.files import write_text

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PARTIAL = "Partial"  # prefix of the definitions without required keys
BASE = {
    "type": "string",
    "description": "YAML file, relative to this one, that this one is laid over. One level only.",
}


def json_schema() -> dict[str, Any]:
    """Schema of every stage, selected by `stage`, with field documentation as descriptions."""
    definitions = TypeAdapter(StageConfig).json_schema()["$defs"]
    partial = {f"{PARTIAL}{name}": _without_required(d) for name, d in definitions.items()}
    stages = [schema.__name__ for schema in STAGES.values()]
    for name in stages:
        partial[f"{PARTIAL}{name}"]["properties"]["base"] = BASE
    return {
        "$schema": DIALECT,
        "title": "paddle_ernie configuration",
        "type": "object",
        "if": {"required": ["base"]},
        "then": {"anyOf": [_reference(PARTIAL + name) for name in stages]},
        "else": {
            "required": ["stage"],
            "properties": {"stage": {"enum": list(STAGES), "description": "What to run."}},
            "allOf": [_if_stage(key, schema.__name__) for key, schema in STAGES.items()],
        },
        "$defs": {**definitions, **partial},
    }


def _if_stage(stage: str, name: str) -> dict[str, Any]:
    """Only the stage's own schema judges a file, so that an editor marks the key that is wrong."""
    condition = {"required": ["stage"], "properties": {"stage": {"const": stage}}}
    return {"if": condition, "then": _reference(name)}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _without_required(definition: dict[str, Any]) -> dict[str, Any]:
    """A copy that demands no key except a step's `kind`, and refers to such copies."""
    partial = copy.deepcopy(definition)
    required = [key for key in partial.pop("required", []) if key == "kind"]
    _redirect(partial)
    return {**partial, "required": required} if required else partial


def _redirect(node: Any) -> None:
    if isinstance(node, dict):
        if "$ref" in node:
            node["$ref"] = node["$ref"].replace("#/$defs/", f"#/$defs/{PARTIAL}")
        if "mapping" in node.get("discriminator", {}):
            del node["discriminator"]  # a hint for code generators; the branches say the same
        for inner in node.values():
            _redirect(inner)
    elif isinstance(node, list):
        for inner in node:
            _redirect(inner)


def main(arguments: list[str] | None = None) -> None:
    """Write the schema to a file, or to standard output."""
    parser = argparse.ArgumentParser(prog="python -m paddle_ernie.config.schema")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    output = parser.parse_args(arguments).output
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


if __name__ == "__main__":
    main()
