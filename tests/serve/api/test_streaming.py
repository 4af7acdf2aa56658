"""Server-sent events: bytes on the wire, errors within, token counts."""

import asyncio
import json

import pytest

from paddle_ernie.serve.api.errors import paused_error
from paddle_ernie.serve.api.responses import Usage
from paddle_ernie.serve.api.streaming import (
    Events,
    TokenCounts,
    encode,
    event_response,
    version_spans,
)
from paddle_ernie.serve.types import RequestOutput, VersionSpan


def received(response) -> bytes:
    async def main() -> bytes:
        return b"".join([part async for part in response.body_iterator])

    return asyncio.run(main())


def test_json_on_the_wire():
    assert encode({"a": ["é", None]}) == '{"a":["é",null]}'.encode()
    assert encode("\ud800") == b'"?"'
    with pytest.raises(ValueError):
        encode(float("nan"))


def test_json_is_one_line_for_every_reader():
    text = "".join(map(chr, range(0x3000)))
    line = encode({"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == text


def test_chunks():
    events = Events("id", "chat.completion.chunk", 'a "model"')
    for usage in (None, {"total_tokens": 3}):
        chunk = events.chunk([{"index": 0}], usage)
        assert chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n")
        record = json.loads(chunk.removeprefix(b"data: "))
        created = record.pop("created")
        assert isinstance(created, int)
        expected = {"id": "id", "object": "chat.completion.chunk", "model": 'a "model"',
                    "choices": [{"index": 0}]}  # fmt: skip
        assert record == expected | ({"usage": usage} if usage else {})
    assert events.chunk([], first=True).endswith(b"} \n\n")
    assert events.arrival_time() >= 0


def test_the_end_is_always_marked():
    async def whole():
        yield b"data: 1\n\n"

    async def failing():
        yield b"data: 1\n\n"
        raise paused_error()

    assert received(event_response(whole())) == b"data: 1\n\ndata: [DONE]\n\n"
    _, error, done, _ = received(event_response(failing())).split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: ")) == paused_error().body
    assert done == b"data: [DONE]"
    assert event_response(whole()).headers["x-accel-buffering"] == "no"


def test_counts():
    counts = TokenCounts(10)
    for prompt, cached in ((0, 0), (0, 4), (0, 4), (1, 2)):
        counts.add(prompt, RequestOutput("x", token_ids=(1, 2), cached_tokens=cached))
    counts.reasoning = 3
    usage = Usage.model_validate(counts.usage())
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 8, 18)
    assert usage.prompt_tokens_details.cached_tokens == 6, "a prompt's choices share its pages"
    assert usage.completion_tokens_details.reasoning_tokens == 3


def test_spans_are_there_at_the_end_only():
    assert version_spans(RequestOutput("x")) is None
    spans = (VersionSpan(0, 2, 5), VersionSpan(2, 3, 6))
    assert version_spans(RequestOutput("x", version_spans=spans)) == [
        {"start": 0, "end": 2, "version": 5},
        {"start": 2, "end": 3, "version": 6},
    ]
