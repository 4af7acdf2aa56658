"""Reasoning, text and calls come out of a reply the same however it is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.serve.api.tool_calls import Parts, ReplyParser, parse_calls

CALL = '<tool_call>{"name": "add", "arguments": {"a":  1, "b": [2, "}</x>"]}}</tool_call>'
FRAGMENTS = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "text", "<", "<too", " é"]


def parse(text: str, cuts=(), **options) -> Parts:
    options = {"reasoning": True, "tools": True, **options}
    parser, whole, start = ReplyParser(**options), Parts(), 0
    for stop in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        add(whole, parser.push(text[start:stop]))
        start = stop
    add(whole, parser.finish())
    assert parser.num_calls == len(whole.calls)
    return whole


def add(whole: Parts, part: Parts) -> None:
    whole.content += part.content
    whole.reasoning += part.reasoning
    whole.calls += part.calls


def as_data(parts: Parts) -> tuple:
    return parts.content, parts.reasoning, [(call.name, call.arguments) for call in parts.calls]


def test_a_reply_with_everything():
    parts = parse(f"<think>why </think>Let me.{CALL}\n{CALL}")
    assert as_data(parts) == (
        "Let me.\n",
        "why ",
        [("add", '{"a":  1, "b": [2, "}</x>"]}')] * 2,
    )
    assert len({call.call_id for call in parts.calls}) == 2


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join),
    st.lists(st.integers(0, 300), max_size=40),
    st.booleans(),
)
def test_cuts_do_not_matter(text, cuts, in_reasoning):
    whole = as_data(parse(text, in_reasoning=in_reasoning))
    assert as_data(parse(text, cuts, in_reasoning=in_reasoning)) == whole
    assert as_data(parse(text, range(len(text)), in_reasoning=in_reasoning)) == whole


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_without_parsers_a_reply_is_its_text(text):
    assert as_data(parse(text, range(len(text)), reasoning=False, tools=False)) == (text, "", [])


def test_text_is_held_back_only_while_it_may_begin_a_tag():
    parser = ReplyParser(reasoning=True, tools=True)
    pieces = [parser.push(text).content for text in ("a", " <", "b", "<th", "at", "<tool_cal")]
    assert pieces == ["a", " ", "<b", "", "<that", ""]
    assert parser.finish().content == "<tool_cal"


def test_reasoning_may_have_begun_in_the_prompt():
    assert as_data(parse("so</think>yes", in_reasoning=True)) == ("yes", "so", [])
    assert as_data(parse("never ends</thi", in_reasoning=True)) == ("", "never ends</thi", [])


def test_a_call_within_reasoning_is_a_thought():
    assert as_data(parse(f"<think>{CALL}</think>")) == ("", CALL, [])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"name": 3, "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": {}} and more',
        '{"name": "f", "arguments": {}',
        '{"name": "f" "arguments": {}}',
        '{"name": "f", "arguments": {"a": 1}}}',
        "[" * 5000,
        '{"name": "f", "arguments": ' + "[" * 100_000,
    ],
)
def test_what_is_no_call_stays_text(body):
    text = f"<tool_call>{body}</tool_call>after"
    assert as_data(parse(text)) == (text, "", [])


def test_an_unfinished_call_stays_text():
    text = '<tool_call>{"name": "f", "argum'
    assert as_data(parse(text)) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name":"f","arguments":{}}', [("f", "{}")]),
        ('\n{"arguments": {"x": "é"}, "name": "f"}\n', [("f", '{"x": "é"}')]),
        ('{"name": "f", "parameters": {"x": 1}}', [("f", '{"x": 1}')]),
        ('{"name": "f"}', [("f", "{}")]),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", '{"x": 1}')]),
        ('[{"name": "f", "arguments": {}}, {"name": "g"}]', [("f", "{}"), ("g", "{}")]),
    ],
)
def test_spellings_of_calls(text, calls):
    found = parse_calls(text)
    assert found is not None
    assert [(call.name, call.arguments) for call in found] == calls


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none()))
def test_arguments_survive(arguments):
    text = json.dumps({"name": "f", "arguments": arguments})
    (call,) = parse_calls(text) or ()
    assert json.loads(call.arguments) == arguments
