"""Which keys a schema knows at a path, read from its annotations (for suggestions in errors)."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from paddle_ernie.config.base import Section
from paddle_ernie.config.source import KeyPath, Plain


def keys_at(schema: type[Section], path: KeyPath, value: Plain) -> list[str]:
    """Keys of the section at `path`; `value` decides between the kinds of a pipeline step."""
    annotation: Any = schema
    for part in path:
        annotation = _child(annotation, part, value)
        value = _value_child(value, part)
    return list(dict.fromkeys(key for s in _sections(annotation, value) for key in s.model_fields))


def sections_with(schema: type[Section], key: str) -> list[str]:
    """Names of the direct sections of a stage that know `key`, and `` for the stage itself."""
    return [
        name
        for name, field in schema.model_fields.items()
        for section in _sections(field.annotation, None)
        if key in section.model_fields
    ]


def is_section(annotation: Any) -> bool:
    """Whether an annotation is a section's class."""
    # Python 3.10 takes `list[str]` for a type, which issubclass then refuses.
    plain = isinstance(annotation, type) and get_origin(annotation) is None
    return plain and issubclass(annotation, Section)


def _child(annotation: Any, part: str | int, value: Plain) -> Any:
    for section in _sections(annotation, value):
        if part in section.model_fields:
            return section.model_fields[str(part)].annotation
    for member in _members(annotation):
        if get_origin(member) in (list, dict):
            return get_args(member)[-1]
    return None


def _value_child(value: Plain, part: str | int) -> Plain:
    if isinstance(value, dict):
        return value.get(part)
    return value[part] if isinstance(value, list) and isinstance(part, int) else None


def _sections(annotation: Any, value: Plain) -> list[type[Section]]:
    """Section classes an annotation allows, narrowed by the value's `kind` where it has one."""
    found = [member for member in _members(annotation) if is_section(member)]
    kind = value.get("kind") if isinstance(value, dict) else None
    narrowed = [s for s in found if kind in _kinds(s)]
    return narrowed or found


def _kinds(section: type[Section]) -> tuple[str, ...]:
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field is not None else ()


def _members(annotation: Any) -> Iterator[Any]:
    """Members of unions, however nested or annotated."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation
