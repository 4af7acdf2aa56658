"""Manual pages (roff with the man macros) to plain text, without groff. Called by `package_text`.

Good for training text, not for typesetting: headings and paragraphs become lines, font changes and
layout requests disappear, tables and macro definitions are left out.
"""

import re
import unicodedata

PARAGRAPHS = frozenset({"PP", "P", "LP", "HP", "sp", "RS", "RE"})
LINES = frozenset({"TP", "TQ", "br", "ti"})
FONTS = frozenset({"B", "I", "SM", "SB", "R"})
ALTERNATING = frozenset({"BR", "RB", "IR", "RI", "BI", "IB"})
VERBATIM = {"nf": True, "EX": True, "fi": False, "EE": False}
"""Whether lines are kept as they are from here on, or flow into paragraphs."""

SKIPPED = {"de": "..", "de1": "..", "ig": "..", "TS": ".TE", "EQ": ".EN"}
"""Requests that begin a part to leave out, and the line that ends it."""

GLYPHS = {
    "bu": "•", "aq": "'", "dq": '"', "cq": "'", "oq": "'", "lq": "“", "rq": "”", "em": "—",
    "en": "–", "hy": "-", "mi": "-", "co": "©", "rg": "®", "rs": "\\", "ti": "~", "ha": "^",
    "ga": "`", "->": "→", "<-": "←", "+-": "±", "mu": "×", "de": "°", "sc": "§", "12": "½",
    "lB": "[", "rB": "]", "la": "<", "ra": ">", "or": "|", "ba": "|", "at": "@", "sh": "#",
}  # fmt: skip

ESCAPE = re.compile(
    r"""\\(?: f(?:\[[^]]*\]|\(..|.)      # font
            | s[-+]?\d+                  # size
            | \*(?:\[[^]]*\]|\(..|.)     # string
            | [hvwk]'[^']*'              # motion
            | \[(?P<long>[^]]*)\] | \((?P<short>..)
            | (?P<single>.) )""",
    re.VERBOSE,
)
SINGLES = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`"}
"""Escapes of one character; all others stand for nothing."""


def roff_to_text(source: str) -> str:
    """The readable text of a page; empty for a page that only includes another."""
    page = _Page()
    until = ""
    for line in source.splitlines():
        if until:
            until = "" if line.strip() == until else until
        elif line[:1] not in (".", "'"):
            page.add(plain(line))
        else:
            request, _, rest = line[1:].strip().partition(" ")
            until = SKIPPED.get(request, "")
            page.request(request, rest.strip())
    return page.text()


class _Page:
    """Finished lines, and the paragraph that is being filled."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._paragraph = ""
        self._verbatim = False

    def add(self, text: str) -> None:
        """A text line: a line of its own if verbatim or indented, else more of the paragraph."""
        if self._verbatim or not text or text[0] == " ":
            self.end()
            self._lines.append(text)
        elif self._paragraph and not (_is_wide(self._paragraph[-1]) and _is_wide(text[0])):
            self._paragraph += " " + text
        else:
            self._paragraph += text

    def request(self, name: str, rest: str) -> None:
        """A line that begins with a dot."""
        if name in ("SH", "SS"):
            self.end()
            self._lines += ["", " ".join(_arguments(rest)), ""]
        elif name in FONTS:
            self.add(" ".join(_arguments(rest)))
        elif name in ALTERNATING:
            self.add("".join(_arguments(rest)))
        elif name in VERBATIM:
            self.end()
            self._verbatim = VERBATIM[name]
        elif name in LINES:
            self.end()
        elif name in PARAGRAPHS or name == "IP":
            self.end()
            self._lines += ["", *(_arguments(rest)[:1] if name == "IP" else [])]

    def end(self) -> None:
        """Finish the paragraph."""
        if self._paragraph:
            self._lines.append(self._paragraph)
            self._paragraph = ""

    def text(self) -> str:
        """The whole page, no more than one blank line in a row."""
        self.end()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self._lines)).strip() + "\n"


def plain(text: str) -> str:
    """A line without escapes and comments."""
    return ESCAPE.sub(_escape, re.sub(r'\\".*', "", text)).rstrip()


def _is_wide(character: str) -> bool:
    """Chinese, Japanese and Korean characters and punctuation, which lines are joined between."""
    return unicodedata.east_asian_width(character) in "WF"


def _arguments(rest: str) -> list[str]:
    """Words, or quoted strings with "" for a quote."""
    found = re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s"\\])(?:\\.|[^\s\\])*)', rest)
    return [plain(quoted.replace('""', '"') or bare) for quoted, bare in found]


def _escape(match: re.Match[str]) -> str:
    glyph = match["long"] or match["short"]
    if glyph and re.fullmatch(r"u[0-9A-F]{4,6}", glyph):
        return chr(int(glyph[1:], 16)) if int(glyph[1:], 16) <= 0x10FFFF else ""
    if glyph:
        return GLYPHS.get(glyph, "")
    return SINGLES.get(match["single"] or "", "")
