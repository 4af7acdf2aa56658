"""YAML text as plain values, with the file and line of every key and list entry.

The loader composes PyYAML's node tree instead of loading values, because only nodes know where they
stand. Scalars follow YAML 1.2 (`1e-3` is a number, `yes` and `on` are text), with underscores in
integers as in Python; `1e6` is an integer, so that sizes may be written that way.
"""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from paddle_ernie.utils.errors import ConfigError

MAX_NODES = 100_000  # far above any real file; stops aliases that expand without end
MAX_DIGITS = 400  # a float has at most 309 before its point; Python refuses to read 4,300
MERGE_KEY = "<<"

KeyPath = tuple[str | int, ...]
Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]  # by the first character of a scalar
Plain = Any  # what JSON can hold: dict[str, Plain], list[Plain], str, int, float, bool, None


@dataclass(frozen=True)
class Place:
    """Where a value was written."""

    source: str
    """A file's path, or `-o key=value`."""
    line: int | None = None
    """From 1; None for a command-line override."""

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class Document:
    """Plain values and the place of each one: `a: {b: [7]}` has (), (a), (a, b), (a, b, 0)."""

    value: Plain
    places: dict[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """Where `path` was written, or the nearest enclosing value that was."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return Place("the configuration")


class CoreLoader(yaml.SafeLoader):
    """PyYAML's parser with the scalar rules of YAML 1.2."""

    yaml_implicit_resolvers: ClassVar[Resolvers] = {}


class CoreDumper(yaml.SafeDumper):
    """Writes scalars so that CoreLoader reads the same values back."""

    yaml_implicit_resolvers: ClassVar[Resolvers] = {}

    def ignore_aliases(self, data: Any) -> bool:
        """Never write anchors: repeated values are repeated."""
        return True


def _represent_text(dumper: CoreDumper, text: str) -> yaml.ScalarNode:
    """Text of several lines in double quotes, with its line ends in sight."""
    style = '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


CoreDumper.add_representer(str, _represent_text)

SCALARS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
)
for _tag, _pattern, _first in SCALARS:
    for _class in (CoreLoader, CoreDumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)


def parse_yaml(text: str, source: str, *, line: int | None = 1) -> Document:
    """Plain values and places of one YAML document; ConfigError names the line of a syntax error.

    `line=None` gives every value the place `source` alone (command-line overrides).
    """
    try:
        node = _compose(text)
        places: dict[KeyPath, Place] = {}
        value = None if node is None else _Builder(source, line, places).build(node, ())
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_message(error, source, line)) from error
    except yaml.reader.ReaderError as error:
        at = Place(source, text.count("\n", 0, error.position) + 1 if line else None)
        raise ConfigError(
            f"{at}: not text: character {error.character:#x} ({error.reason}); "
            "a configuration is a YAML text file"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{source}: lists or mappings are nested too deeply") from error
    return Document(value, {**places, (): Place(source, line)})


def dump_plain(value: Plain) -> str:
    """YAML text of a plain value, keys in their order."""
    return yaml.dump(value, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=100)


def _compose(text: str) -> yaml.Node | None:
    loader = CoreLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


class _Builder:
    """Turns nodes into values; fills `places` on the way."""

    def __init__(self, source: str, line: int | None, places: dict[KeyPath, Place]) -> None:
        self.source, self.line, self.places = source, line, places
        self.open: list[int] = []  # ids of the nodes being built, to notice a value inside itself
        self.count = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Plain:
        """Value of `node`, which stands at `path`."""
        self.places.setdefault(path, self._place(node))
        self.count += 1
        if self.count > MAX_NODES:
            raise ConfigError(f"{self.source}: more than {MAX_NODES} values once aliases expand")
        if id(node) in self.open:
            raise ConfigError(f"{self._place(node)}: a value that contains itself through an alias")
        self.open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self.open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Plain]:
        value: dict[str, Plain] = {}
        first: dict[str, Place] = {}
        for key_node, value_node in node.value:
            key, place = key_node.value, self._place(key_node)
            if key == MERGE_KEY:
                continue
            if not isinstance(key, str) or not key_node.tag.endswith(":str"):
                found = key if isinstance(key, Hashable) else "a list or mapping"
                raise ConfigError(f"{place}: found the key {found!r}, expected text")
            self._text(key_node)
            if key in first:
                earlier = f", first on line {first[key].line}" if first[key].line else ""
                raise ConfigError(
                    f"{place}: the key {dotted((*path, key))!r} is written twice{earlier}; keep "
                    "one of them"
                )
            first[key] = self.places[(*path, key)] = place
            value[key] = self.build(value_node, (*path, key))
        for key, value_node in self._merged(node):
            if key not in value:
                value[key] = self.build(value_node, (*path, key))
        return value

    def _merged(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
        """Entries that `<<: *alias` (or a list of aliases) brings in; earlier ones win."""
        for key_node, value_node in node.value:
            if key_node.value != MERGE_KEY:
                continue
            is_list = isinstance(value_node, yaml.SequenceNode)
            for parent in value_node.value if is_list else [value_node]:
                if not isinstance(parent, yaml.MappingNode) or parent is node:
                    raise ConfigError(f"{self._place(key_node)}: `<<` takes an alias of a mapping")
                for inner_key, inner_value in parent.value:
                    if inner_key.value != MERGE_KEY:
                        yield inner_key.value, inner_value
                if id(parent) not in self.open:
                    self.open.append(id(parent))
                    yield from self._merged(parent)
                    self.open.pop()

    def _scalar(self, node: yaml.ScalarNode) -> Plain:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        text = node.value.replace("_", "")
        if kind == "str":
            return self._text(node)
        if kind in ("int", "float") and len(text) > MAX_DIGITS:
            raise ConfigError(f"{self._place(node)}: a number of {len(text):,} digits is too long")
        try:
            if kind == "int":
                return int(text, 0 if text[:2] in ("0x", "0o") else 10)
            if kind == "float":
                return _number(text)
        except ValueError as error:
            raise ConfigError(f"{self._place(node)}: {node.value!r} is not a number") from error
        if kind == "bool" and node.value.lower() in ("true", "false"):
            return node.value.lower() == "true"
        if kind == "null":
            return None
        raise ConfigError(f"{self._place(node)}: the YAML tag {node.tag!r} is not supported")

    def _text(self, node: yaml.ScalarNode) -> str:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise ConfigError(
                f"{self._place(node)}: {node.value!a} holds half of a surrogate pair, which "
                "is no character; write the character itself, or its code as \\UXXXXXXXX"
            )
        return str(node.value)

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.source, self.line and node.start_mark.line + self.line)


def dotted(path: KeyPath) -> str:
    """`("stages", 0, "train")` as `stages.0.train`, the spelling that `-o` takes."""
    return ".".join(str(part) for part in path)


def reads_as_text(value: str) -> bool:
    """Whether YAML reads `value`, written without quotes, as text and not as a number."""
    resolvers = CoreLoader.yaml_implicit_resolvers.get(value[:1], [])
    return value == value.strip() and not any(pattern.match(value) for _, pattern in resolvers)


def _number(text: str) -> float | int:
    """A float; an integer when written like `16e6`, without a point and integral."""
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return float(text.replace(".", "", 1))
    value = float(text)
    integral = "." not in text and value.is_integer() and abs(value) < 2**53
    return int(value) if integral else value


SYNTAX_HINTS = {
    "'\\t'": "; indent with spaces, not tabs",
    "mapping values are not allowed": (
        "; keys of one section start in the same column, a key's colon is followed by a space, and "
        "a value with a colon needs quotes"
    ),
    "expected alphabetic or numeric": "; a value that starts with * or & needs quotes",
    "cannot start any token": "; a value that starts with this character needs quotes",
}
"""What the parser says (in part), and what it usually means."""


def _syntax_message(error: yaml.MarkedYAMLError, source: str, line: int | None) -> str:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context
    if mark is None or line is None:
        return f"{source}: not valid YAML: {problem}"
    context = f" {error.context}" if error.context and error.context != problem else ""
    started = ""
    if error.context_mark and error.context_mark.line != mark.line:
        started = f" (which starts on line {error.context_mark.line + line})"
    hint = next((text for sign, text in SYNTAX_HINTS.items() if sign in str(problem)), "")
    snippet = mark.get_snippet(indent=4) or ""
    return (
        f"{source}:{mark.line + line}: not valid YAML{context}{started}: {problem}{hint}\n{snippet}"
    )
