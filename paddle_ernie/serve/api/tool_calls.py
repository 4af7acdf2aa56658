"""Takes a reply apart while it is generated: reasoning, text, tool calls.

    <think>why</think>Text<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>

    push("<thi") ""   push("nk>why</th") reasoning "why"   ...   finish()

Called by the chat handlers, for whole replies too, so that both forms agree. However the text is
cut into pieces, the parts add up to the same. A call comes out whole, its arguments exactly as the
model wrote them; what does not parse as a call stays text, tags included.
"""

import json
import uuid
from dataclasses import dataclass, field
from enum import Enum

THINK_START, THINK_END = "<think>", "</think>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
WHITESPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ParsedCall:
    """A call a model asks for."""

    name: str
    arguments: str
    """JSON text."""
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass
class Parts:
    """What a piece of a reply turned out to be."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class _State(Enum):
    CONTENT = 0
    REASONING = 1
    CALL = 2


class ReplyParser:
    """Of one reply. With neither reasoning nor tools every text is content, at once."""

    def __init__(self, *, reasoning: bool, tools: bool, in_reasoning: bool = False) -> None:
        """`in_reasoning`: the prompt ended with <think>."""
        self._openers = {
            tag: state
            for tag, state, wanted in (
                (THINK_START, _State.REASONING, reasoning),
                (CALL_START, _State.CALL, tools),
            )
            if wanted
        }
        self._state = _State.REASONING if reasoning and in_reasoning else _State.CONTENT
        self._held = ""
        self.num_calls = 0

    @property
    def in_reasoning(self) -> bool:
        """Whether the next token belongs to the reasoning."""
        return self._state is _State.REASONING

    def push(self, text: str) -> Parts:
        """The parts that became certain; a text that may begin a tag is held back."""
        parts = Parts()
        if not self._openers:
            parts.content = text
            return parts
        self._held += text
        while self._step(parts):
            pass
        return parts

    def finish(self) -> Parts:
        """What was held back: an unfinished tag or call is text."""
        held, self._held = self._held, ""
        if self._state is _State.REASONING:
            return Parts(reasoning=held)
        return Parts(content=CALL_START + held if self._state is _State.CALL else held)

    def _step(self, parts: Parts) -> bool:
        """Pass on text up to the next tag and change the state; False: wait for more."""
        if self._state is _State.CONTENT:
            tag, before = _find(self._held, tuple(self._openers))
            parts.content += before
        elif self._state is _State.REASONING:
            tag, before = _find(self._held, (THINK_END,))
            parts.reasoning += before
        else:
            # Searching a long call again for each token is cheap: only its end can be new.
            tag, before = (CALL_END, "") if CALL_END in self._held else (None, "")
        if tag is None:
            self._held = self._held[len(before) :]
            return False
        if self._state is _State.CALL:
            before, _, self._held = self._held.partition(CALL_END)
            self._end_call(before, parts)
        else:
            self._held = self._held[len(before) + len(tag) :]
        self._state = self._openers.get(tag, _State.CONTENT)
        return True

    def _end_call(self, text: str, parts: Parts) -> None:
        calls = parse_calls(text)
        if calls is None:
            parts.content += CALL_START + text + CALL_END
            return
        parts.calls += calls
        self.num_calls += len(calls)


def parse_calls(text: str) -> list[ParsedCall] | None:
    """The calls in an object, or a list of them, with a name and arguments; None: it is neither."""
    try:
        if text.lstrip(WHITESPACE).startswith("["):
            values, _ = _members(text, "[", "]", keyed=False)
            calls = [_parse_call(value) for _, value in values]
        else:
            calls = [_parse_call(text)]
    except (ValueError, RecursionError):
        return None
    return calls or None


def _parse_call(text: str) -> ParsedCall:
    members = dict(_members(text, "{", "}", keyed=True)[0])
    name = json.loads(members.get("name", "null"))
    arguments = members.get("arguments", members.get("parameters", "{}"))
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    value = json.loads(arguments)
    if isinstance(value, str):  # arguments as OpenAI writes them: JSON text in a string
        arguments, value = value, json.loads(value)
    if not isinstance(value, dict):
        raise ValueError("arguments are not an object")
    return ParsedCall(name, arguments)


def _members(text: str, start: str, end: str, *, keyed: bool) -> tuple[list[tuple[str, str]], int]:
    """(key, JSON text of the value) of an object's or a list's members, unchanged in spelling."""
    found: list[tuple[str, str]] = []
    at = _expect(text, 0, start)
    while not text.startswith(end, at):
        if found:
            at = _expect(text, at, ",")
        key = ""
        if keyed:
            key, at = _DECODER.raw_decode(text, at)
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            at = _expect(text, _skip(text, at), ":")
        stop = _DECODER.raw_decode(text, at)[1]
        found.append((key, text[at:stop]))
        at = _skip(text, stop)
    if text[at + 1 :].strip(WHITESPACE):
        raise ValueError("text after the call")
    return found, at


def _expect(text: str, at: int, mark: str) -> int:
    """Position after a mark and the white space around it."""
    at = _skip(text, at)
    if not text.startswith(mark, at):
        raise ValueError(f"expected {mark!r}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in WHITESPACE:
        at += 1
    return at


def _find(text: str, tags: tuple[str, ...]) -> tuple[str | None, str]:
    """The first of the tags and the text before it, or None and the text no tag can begin in."""
    places = [(text.find(tag), tag) for tag in tags]
    found = min((place for place in places if place[0] >= 0), default=None)
    if found is not None:
        return found[1], text[: found[0]]
    start = text.rfind("<")  # all tags begin with it, and hold no other
    if start >= 0 and any(tag.startswith(text[start:]) for tag in tags):
        return None, text[:start]
    return None, text
