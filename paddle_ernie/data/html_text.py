"""HTML to plain text with the standard library's parser, for documentation pages.

Scripts, styles and other invisible parts are left out, block elements become lines, white space is
collapsed except inside <pre>. Called by `readers`.
"""

import re
from html.parser import HTMLParser

INVISIBLE = frozenset({"script", "style", "head", "template", "noscript", "svg", "object"})
BLOCKS = re.compile(
    r"address|article|aside|blockquote|body|br|caption|d[dlt]|details|div|fieldset|fig(caption|ure)|"
    r"footer|form|h[1-6]|header|hr|html|legend|li|main|nav|[ou]l|p|pre|section|summary|"
    r"t(able|body|foot|head|r)"
)
PARAGRAPHS = re.compile(r"p|pre|h[1-6]|[ou]l|table|blockquote")
"""Blocks that a blank line sets apart; the other blocks begin a new line."""

CELLS = frozenset({"td", "th"})
LINE, PARAGRAPH = "\x1e", "\x1d"
"""Marks of a coming line or paragraph; two in a row are one. Control characters, not in text."""

TRAILING_MARKS = re.compile(r"(?<![ \t])[ \t]*\n?([\x1d\x1e]+)")
"""The look-behind lets a match begin only where a run of spaces does: long runs stay linear."""

CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.I)
CHARSET_SCAN_BYTES = 2048
"""The declaration stands in the first 1,024 bytes by the HTML standard; be lenient."""


def html_to_text(markup: str) -> str:
    """The visible text of a page."""
    parser = _TextParser()
    parser.feed(markup)
    parser.close()
    return parser.text()


def declared_charset(data: bytes) -> str | None:
    """The encoding a page names in its head, or None."""
    match = CHARSET.search(data[:CHARSET_SCAN_BYTES])
    return match[1].decode("ascii") if match else None


class _TextParser(HTMLParser):
    """Collects text; blocks are separated by line breaks that `text` tidies up."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden: list[str] = []
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.append(tag)
            elif tag == "body" and self._hidden[-1] == "head":
                self._hidden.clear()  # a head that was never closed
            else:
                return
        elif tag in INVISIBLE:
            self._hidden.append(tag)
        if BLOCKS.fullmatch(tag):
            self._mark(tag)
        elif tag in CELLS and not self._at_mark():
            self._parts.append("\t")
        if tag == "pre":
            self._verbatim += 1

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
            return
        if BLOCKS.fullmatch(tag):
            self._mark(tag)
        if tag == "pre" and self._verbatim:
            self._verbatim -= 1

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if not self._verbatim:
            data = re.sub(r"\s+", " ", data)
            data = data.lstrip(" ") if self._at_mark() else data
        if data:
            self._parts.append(data)

    def text(self) -> str:
        """The page's lines: no trailing spaces, no more than one blank line in a row."""
        marked = TRAILING_MARKS.sub(_line_break, "".join(self._parts))
        lines = "\n".join(line.rstrip() for line in marked.split("\n"))
        return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"

    def _mark(self, tag: str) -> None:
        self._parts.append(PARAGRAPH if PARAGRAPHS.fullmatch(tag) else LINE)

    def _at_mark(self) -> bool:
        return not self._parts or self._parts[-1] in (LINE, PARAGRAPH)


def _line_break(marks: re.Match[str]) -> str:
    return "\n\n" if PARAGRAPH in marks[1] else "\n"
