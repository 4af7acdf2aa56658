"""Documents inside an unpacked package, by the reading its catalogue entry names.

    text        the file as it is (.rst, .pod, .md, .py, dictionaries)
    html, roff  stripped
    fortunes    entries between lines with a single %
    tagged      a line a sentence, words with tags: The/at jury/nn
    tagged-zh   the same, joined without spaces
    lines       every line is a document
    wordnet     "word, word: gloss" from WordNet's data files
    poems       JSON objects with a list of verses
    strings     every string of a JSON value is a document

Called by `mixtures`.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paddle_ernie.data.catalog import Package, Reading
from paddle_ernie.data.compressed import open_binary
from paddle_ernie.data.documents import cut
from paddle_ernie.data.html_text import html_to_text
from paddle_ernie.data.readers import decode
from paddle_ernie.data.roff_text import roff_to_text
from paddle_ernie.data.sources import FileKind

TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
VERSES = ("paragraphs", "content", "para")
HEADINGS = ("title", "rhythmic", "chapter", "author")
KINDS: dict[str, FileKind] = {".py": "python", ".html": "html"}
"""Suffixes of files that may declare their own encoding."""


def package_files(root: Path, package: Package) -> list[Path]:
    """The files of an unpacked package that hold its text."""
    excluded = {path for pattern in package.exclude for path in root.glob(pattern)}
    # Leaving out a link must not leave out the file it leads to.
    links = {path for path in excluded if path.is_symlink()}
    left_out = {path.resolve() for path in excluded - links}
    included = {path for pattern in package.include for path in root.glob(pattern)}
    # Resolved, because links give a file several names and one is enough.
    found = {path.resolve() for path in included if links.isdisjoint((path, *path.parents))}
    return sorted(
        path
        for path in found
        if path.is_file() and path not in left_out and left_out.isdisjoint(path.parents)
    )


def file_documents(path: Path, package: Package) -> Iterator[str]:
    """The documents of one file. A file in an unknown encoding raises UnreadableError."""
    with open_binary(path) as (stream, _):
        data = stream.read()
    if package.stray_bytes:
        text = data.decode(errors="replace")
    else:
        text = decode(data, KINDS.get(path.suffix, "text"))
    for document in READERS[package.reading](text):
        yield from (piece for piece in cut(document) if piece.strip())


def _whole(text: str) -> Iterator[str]:
    yield text


def _html(text: str) -> Iterator[str]:
    yield html_to_text(text)


def _roff(text: str) -> Iterator[str]:
    yield roff_to_text(text)


def _fortunes(text: str) -> Iterator[str]:
    for entry in re.split(r"^%\s*$", TERMINAL_COLOUR.sub("", text), flags=re.MULTILINE):
        yield entry.strip() + "\n"


def _tagged(text: str) -> Iterator[str]:
    lines = (" ".join(_words(line)) for line in text.splitlines())
    yield "\n".join(_close_up(line) for line in lines if line) + "\n"


def _tagged_zh(text: str) -> Iterator[str]:
    yield "\n".join("".join(_words(line)) for line in text.splitlines()) + "\n"


def _words(line: str) -> list[str]:
    return [word.rpartition("/")[0] or word for word in line.split()]


def _close_up(line: str) -> str:
    """Quotes and punctuation as they are printed, from tokens that stand apart."""
    line = line.replace("`` ", '"').replace(" ''", '"')
    return re.sub(r" ([.,;:?!)])", r"\1", line).replace("( ", "(")


def _lines(text: str) -> Iterator[str]:
    yield from (line.strip() + "\n" for line in text.splitlines())


def _wordnet(text: str) -> Iterator[str]:
    entries = []
    for line in text.splitlines():
        if line.startswith("  ") or " | " not in line:
            continue  # the licence at the top
        fields, _, gloss = line.partition(" | ")
        values = fields.split()
        words = values[4 : 4 + 2 * int(values[3], 16) : 2]
        entries.append(f"{', '.join(words).replace('_', ' ')}: {gloss.strip()}\n")
    yield "\n".join(entries)


def _poems(text: str) -> Iterator[str]:
    for poem in _objects(json.loads(text)):
        verses = next((poem[key] for key in VERSES if isinstance(poem.get(key), list)), [])
        lines = [verse for verse in verses if isinstance(verse, str)]
        heading = [str(poem[key]) for key in HEADINGS if poem.get(key)]
        if lines:
            yield "\n".join([" ".join(heading), *lines]).strip() + "\n"


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from _objects(inner)


def _strings(text: str) -> Iterator[str]:
    pending = [json.loads(text)]
    while pending:
        value = pending.pop(0)
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            pending[:0] = value.values() if isinstance(value, dict) else value


READERS: dict[Reading, Callable[[str], Iterator[str]]] = {
    "text": _whole,
    "html": _html,
    "roff": _roff,
    "fortunes": _fortunes,
    "tagged": _tagged,
    "tagged-zh": _tagged_zh,
    "lines": _lines,
    "wordnet": _wordnet,
    "poems": _poems,
    "strings": _strings,
}
