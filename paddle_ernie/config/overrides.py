"""`-o key=value`: values from the command line laid over a configuration.

-o train.max_steps=5                      a key, created if the file does not have it
-o data.sources.0.max_bytes=1e6           an entry of a list, from 0
-o stages.pretrain.train.max_steps=5      an entry of a list by its `name`
-o 'model={hidden_size: 64}'              any YAML value; replaces what was there
"""

from paddle_ernie.config.faults import nearest, shown
from paddle_ernie.config.source import Document, KeyPath, Place, Plain, dotted, parse_yaml
from paddle_ernie.utils.errors import ConfigError

MAX_SHOWN_CHARS = 72  # of an override in messages, so that a long value does not fill the screen


def apply_override(document: Document, text: str) -> Document:
    """A document in which `text` (`key=value`) is set; `document` itself stays as it is."""
    source = f"-o {text}" if len(text) <= MAX_SHOWN_CHARS else f"-o {text[:MAX_SHOWN_CHARS]}..."
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{source}: expected KEY=VALUE, for example -o train.max_steps=100")
    if parts[0] == "base":
        raise ConfigError(f"{source}: `base` can only stand in a file")
    parsed = parse_yaml(value_text, source, line=None)
    value, path = _set(document.value, parts, parsed.value, (), source)
    places = {p: at for p, at in document.places.items() if p[: len(path)] != path}
    for length in range(1, len(path)):
        places.setdefault(path[:length], Place(source))
    places |= {(*path, *inner): Place(source) for inner in parsed.places}
    places[path] = Place(source)
    return Document(value, places)


def _set(
    node: Plain, parts: list[str], value: Plain, path: KeyPath, source: str
) -> tuple[Plain, KeyPath]:
    """A copy of `node` with `value` at `parts`, and the path that `parts` turned out to mean."""
    if not parts:
        return value, path
    part, rest = parts[0], parts[1:]
    if node is None:
        node = {}
    if isinstance(node, dict):
        inner, where = _set(node.get(part), rest, value, (*path, part), source)
        return {**node, part: inner}, where
    if isinstance(node, list):
        index = _index(node, part, path, source)
        inner, where = _set(node[index], rest, value, (*path, index), source)
        return [*node[:index], inner, *node[index + 1 :]], where
    raise ConfigError(
        f"{source}: `{dotted(path)}` is {shown(node)}, which has no key `{part}`; "
        f"expected a mapping or a list there"
    )


def _index(node: list[Plain], part: str, path: KeyPath, source: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(node):
        return int(part)
    known = [str(name) for name in names if name is not None]
    near = nearest(part, known)
    raise ConfigError(
        f"{source}: `{dotted(path)}` has no entry {part!r}; expected 0 to {len(node) - 1}"
        + (f" or a name of {', '.join(known)}" if known else "")
        + (f"; did you mean `{near}`?" if near else "")
    )
