"""The server under test, and what the checks have in common."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

Json = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Count from one to ten."}]
NEW = 8
"""Tokens that a check generates."""


class Skip(Exception):  # noqa: N818  not an error
    """There is nothing to check; the text says why."""


@dataclass(frozen=True)
class Options:
    """What may be done to the server, and what is known of it."""

    url: str
    metrics_url: str
    api_key: str | None
    model: str
    timeout_s: float
    ours: bool
    """It is paddle_ernie's server, which has fields that FastDeploy has not."""
    control: bool
    """Pause and resume it."""
    update: str | None
    """Load this version of the weights."""
    sleep: bool
    """Put its weights and cache away, and bring them back."""
    overload: int
    """So many requests at once are more than it takes; 0: not tried."""


@dataclass(frozen=True)
class Server:
    """Requests with the options' key and model."""

    http: httpx.Client
    options: Options

    def chat(self, **fields: Any) -> Json:
        """A whole answer to a short greedy request; `fields` change it."""
        return self.ok(self.post(CHAT, self.chat_body(**fields)))

    def completion(self, **fields: Any) -> Json:
        """The same by the other endpoint."""
        return self.ok(self.post(COMPLETIONS, self.completion_body(**fields)))

    def chat_body(self, **fields: Any) -> Json:
        """A field that is None is left out."""
        body = {"messages": MESSAGES, **self._common(), **fields}
        return {name: value for name, value in body.items() if value is not None}

    def completion_body(self, **fields: Any) -> Json:
        """A field that is None is left out."""
        body = {"prompt": "one two three", **self._common(), **fields}
        return {name: value for name, value in body.items() if value is not None}

    def _common(self) -> Json:
        return {"model": self.options.model, "max_tokens": NEW, "temperature": 0, "seed": 1}

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Any status."""
        return self.http.post(path, json=body, **options)

    def ok(self, response: httpx.Response) -> Json:
        """The body of a success."""
        equal(response.status_code, 200, f"HTTP status (body {response.text[:200]})")
        return response.json()

    @contextmanager
    def events(self, path: str, body: Json) -> Iterator[Iterator[Json]]:
        """The JSON of a stream's events; fails unless it is framed as it must be."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                self.ok(response)
            kind = response.headers.get("content-type", "")
            true(kind.startswith("text/event-stream"), f"content type of a stream is {kind!r}")
            yield _events(response)

    def stream(self, path: str, body: Json) -> list[Json]:
        """All of them."""
        with self.events(path, body) as events:
            return list(events)


def _events(response: httpx.Response) -> Iterator[Json]:
    done = False
    for line in response.iter_lines():
        if not line.strip():
            continue
        true(line.startswith("data: "), f"a line of the stream is {line[:60]!r}, not `data: ...`")
        true(not done, f"after [DONE] came {line[:60]!r}")
        text = line.removeprefix("data: ").strip()
        done = text == "[DONE]"
        if not done:
            yield json.loads(text)
    true(done, "the stream ended without `data: [DONE]`")


Check = Callable[[Server], str | None]
"""Returns a remark or nothing; raises AssertionError, or Skip."""


def true(condition: bool, message: str) -> None:
    """Fail with a message; `assert` would go away under -O."""
    if not condition:
        raise AssertionError(message)


def equal(found: Any, expected: Any, what: str) -> None:
    """Fail unless they are."""
    true(found == expected, f"{what}: {found!r}, expected {expected!r}")


def has(record: Any, names: tuple[str, ...], where: str) -> None:
    """Fail unless these keys are there, null or not."""
    true(isinstance(record, dict), f"{where} is {type(record).__name__}, expected an object")
    missing = [name for name in names if name not in record]
    true(not missing, f"{where} lacks {', '.join(missing)}")


def error_of(response: httpx.Response) -> Json:
    """FastDeploy's error object, checked."""
    true(response.status_code >= 400, f"HTTP {response.status_code}, expected an error")
    body = response.json()
    has(body, ("error",), "the body of an error")
    has(body["error"], ("message", "type", "param", "code"), "error")
    return body["error"]


def ids_of(choice: Json) -> list[int]:
    """The new tokens of a chat's or a completion's choice."""
    return list((choice.get("message") or choice).get("completion_token_ids") or [])
