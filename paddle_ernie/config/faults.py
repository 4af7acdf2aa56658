"""Faults of a configuration: from schema errors to lines that name place, key, value and remedy.

    configs/x.yaml:12  train.max_step = 20
        unknown key; did you mean `max_steps`?

All faults of a file are shown together, in the order of the file, and fit one screen.
"""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paddle_ernie.config.base import Section
from paddle_ernie.config.fields import keys_at, sections_with
from paddle_ernie.config.source import Document, KeyPath, Place, Plain, dotted, reads_as_text
from paddle_ernie.utils.errors import ConfigError

MAX_SHOWN = 9  # two lines each: with the heading, a screen of 24 lines
MAX_VALUE_CHARS = 60
MAX_PATH_CHARS = 100
MAX_KEYS_SHOWN = 12

ABSENT = object()


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, before it is placed in a file."""

    path: KeyPath
    text: str
    """What was expected and what to do."""


def fault_error(heading: str, faults: Iterable[Fault], document: Document) -> ConfigError:
    """One ConfigError that reports all faults, in the order of the file."""
    blocks = [(_sort_key(document, fault), _block(fault, document)) for fault in faults]
    blocks = sorted(dict.fromkeys(blocks))
    count = len(blocks)
    lines = [f"{heading}: {count} fault{'s' if count > 1 else ''}"]
    lines += [text for _, text in blocks[:MAX_SHOWN]]
    if count > MAX_SHOWN:
        lines.append(f"and {count - MAX_SHOWN} more, shown once these are mended")
    return ConfigError("\n".join(lines))


def schema_faults(error: ValidationError, schema: type[Section], value: Plain) -> list[Fault]:
    """The faults behind a pydantic error, one per key; union members are merged into one line."""
    expected: dict[KeyPath, list[str]] = {}
    unknown: dict[KeyPath, str] = {}
    for detail in error.errors(include_url=False):
        path = value_path(detail["loc"], value)
        if detail["type"] == "extra_forbidden":
            unknown[path] = _unknown_key_text(path, schema, value)
            continue
        if detail["type"] == "key_fault":
            path = (*path, *_parts(str(detail["ctx"]["key"])))
        if detail["type"] == "union_tag_invalid":
            path = (*path, "kind")
        texts = expected.setdefault(path, [])
        text = _text(detail)
        if text not in texts:
            texts.append(text)
    _drop_misspelt(expected, unknown)
    faults = [Fault(path, text) for path, text in unknown.items()]
    for path, texts in expected.items():
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in expected)
        if not (inner and all(text.startswith("expected") for text in texts)):
            faults.append(Fault(path, _joined(texts)))
    return faults


def value_path(loc: tuple[int | str, ...], value: Plain) -> KeyPath:
    """Pydantic's location without the labels it adds for members of unions."""
    path: list[int | str] = []
    for index, part in enumerate(loc):
        tagged = index > 0 and isinstance(loc[index - 1], int) and isinstance(value, dict)
        if tagged and part == value.get("kind"):
            continue  # the step's kind, which selects its schema
        if isinstance(value, dict) and isinstance(part, str):
            path.append(part)
            value = value.get(part, ABSENT)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            value = value[part]
        elif value is ABSENT:
            break
    return tuple(path)


def value_at(path: KeyPath, value: Plain) -> Plain:
    """The value at `path`, or ABSENT."""
    for part in path:
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not in_list and not (isinstance(value, dict) and part in value):
            return ABSENT
        value = value[part]
    return value


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice a misspelt word most likely means."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def shown(value: Plain) -> str:
    """A value as YAML would write it on one line, cut to fit."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.isprintable() and reads_as_text(value):
        text = value
    return shortened(text, MAX_VALUE_CHARS)


def shortened(text: str, limit: int) -> str:
    """`text`, cut to `limit` characters if it is longer."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _parts(key: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in key.split(".")]


def _block(fault: Fault, document: Document) -> str:
    found = value_at(fault.path, document.value)
    value = "" if found is ABSENT else f" = {shown(found)}"
    if isinstance(found, dict) and found:
        value = ""
    place = document.place(fault.path)
    where = shortened(dotted(fault.path), MAX_PATH_CHARS) or "the file as a whole"
    text = fault.text.replace("\n", "\n    ")
    return f"{place}  {where}{value}\n    {text}"


def _sort_key(document: Document, fault: Fault) -> tuple[bool, str, int]:
    place: Place = document.place(fault.path)
    return place.line is None, place.source, place.line or 0


def _unknown_key_text(path: KeyPath, schema: type[Section], value: Plain) -> str:
    key = str(path[-1])
    known = keys_at(schema, path[:-1], value)
    if near := nearest(key, known):
        return f"unknown key; did you mean `{near}`?"
    if owners := sections_with(schema, key):
        return f"unknown key here; `{key}` belongs to {' or '.join(f'`{o}`' for o in owners)}"
    listed = ", ".join(known[:MAX_KEYS_SHOWN])
    more = ", ..." if len(known) > MAX_KEYS_SHOWN else ""
    return f"unknown key; valid here: {listed}{more}"


def _drop_misspelt(expected: dict[KeyPath, list[str]], unknown: dict[KeyPath, str]) -> None:
    """A required key that is only misspelt is reported once, as the unknown key."""
    for path, text in unknown.items():
        for missing in [p for p, t in expected.items() if t == ["required, but absent"]]:
            if missing[:-1] == path[:-1] and f"`{missing[-1]}`?" in text:
                del expected[missing]


def _joined(texts: list[str]) -> str:
    if all(text.startswith("expected ") for text in texts):
        return "expected " + " or ".join(text.removeprefix("expected ") for text in texts)
    return "; ".join(texts)


PLAIN_TEXTS = {
    "missing": "required, but absent",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "path_type": "expected a path",
    "list_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "finite_number": "expected a finite number",
    "union_tag_not_found": "`kind` is required, but absent",
}
BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _text(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in PLAIN_TEXTS:
        return PLAIN_TEXTS[kind]
    if kind in BOUNDS:
        word, key = BOUNDS[kind]
        return f"expected {word} {_bound(context[key])}"
    if kind == "literal_error":
        return _choice_text(detail["input"], str(context["expected"]))
    if kind == "union_tag_invalid":
        return _choice_text(context["tag"], str(context["expected_tags"]))
    if kind == "too_short":
        return f"expected at least {context['min_length']} entry"
    if kind == "string_pattern_mismatch":
        return f"expected text that matches {context['pattern']}"
    if kind == "key_fault":
        return str(context["text"])
    if kind == "value_error":
        return str(context["error"])
    return str(detail["msg"])


def _bound(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def _choice_text(found: Plain, expected: str) -> str:
    choices = [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]
    near = nearest(str(found), choices)
    return f"expected {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")
