"""Server-sent events as FastDeploy writes them, token counts, and JSON responses.

    data: {"id": ..., "object": ..., "created": ..., "model": ..., "choices": [...]}
    data: [DONE]

What all chunks of a stream share is written once; a chunk costs the encoding of its choices.
"""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import Response, StreamingResponse

from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.types import RequestOutput

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream"
# Proxies must pass chunks on as they come.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# JSON escapes other control characters. These end a line for httpx and other readers of events,
# which would then be given half of one.
LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
# Made once: json.dumps with options builds an encoder per call, a third of a chunk's cost.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(value: Any) -> bytes:
    """Compact JSON on one line; lone surrogates, which a client can send, become question marks."""
    text = _ENCODER.encode(value).encode("utf-8", "replace")
    for raw, escaped in LINE_ENDS:
        text = text.replace(raw, escaped)
    return text


def json_response(value: Any) -> Response:
    """A whole answer."""
    return Response(encode(value), media_type="application/json")


def event_response(events: AsyncIterator[bytes]) -> Response:
    """A stream; an ApiError within becomes an event, and the end is always marked."""
    return StreamingResponse(_closed(events), media_type=EVENT_STREAM, headers=STREAM_HEADERS)


async def _closed(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield event
    except ApiError as error:
        yield b"data: " + encode(error.body) + b"\n\n"
    yield DONE


def head_of(response_id: str, kind: str, model: str) -> Json:
    """What an answer begins with, whole or in each of its events."""
    return {"id": response_id, "object": kind, "created": int(time.time()), "model": model}


class Events:
    """Chunks of one stream."""

    def __init__(self, response_id: str, kind: str, model: str) -> None:
        head = head_of(response_id, kind, model)
        self._start = b"data: " + encode(head)[:-1] + b',"choices":'
        self._began = time.monotonic()

    def chunk(
        self, choices: list[Json], usage: Json | None = None, *, first: bool = False
    ) -> bytes:
        """One event. The first of a choice ends with a space, which is FastDeploy's way."""
        tail = b"}" if usage is None else b',"usage":' + encode(usage) + b"}"
        return self._start + encode(choices) + tail + (b" \n\n" if first else b"\n\n")

    def arrival_time(self) -> float:
        """Seconds since the request came in."""
        return round(time.monotonic() - self._began, 6)


class TokenCounts:
    """Of one response: all its prompts and sequences."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt = prompt_tokens
        self.completion = 0
        self.reasoning = 0
        self._cached: dict[int, int] = {}

    def add(self, prompt: int, output: RequestOutput) -> None:
        """A sequence of prompt `prompt` went on."""
        self.completion += len(output.token_ids)
        if output.cached_tokens:
            self._cached[prompt] = max(self._cached.get(prompt, 0), output.cached_tokens)

    def usage(self) -> Json:
        """FastDeploy's `usage`."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": {
                "cached_tokens": sum(self._cached.values()),
                "image_tokens": 0,
                "video_tokens": 0,
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning, "image_tokens": 0},
        }


def version_spans(output: RequestOutput) -> list[Json] | None:
    """Which weights made which tokens; only a last output knows."""
    if not output.version_spans:
        return None
    return [{"start": s.start, "end": s.end, "version": s.version} for s in output.version_spans]
