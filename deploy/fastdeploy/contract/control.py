"""Checks of weight control: pause, resume, update, sleep, wake up. Only if they are asked for."""

from typing import Any

import httpx

from contract.server import CHAT, Check, Server, Skip, equal, true


def _result(server: Server, response: httpx.Response) -> Any:
    body = server.ok(response)
    equal(body.get("status"), "success", "status")
    return body.get("result")


def _paused(server: Server) -> bool:
    return bool(_result(server, server.http.get("/v1/is_paused"))["is_paused"])


def _post(server: Server, path: str, body: Any = None) -> Any:
    return _result(server, server.post(path, body))


def pause_and_resume(server: Server) -> str:
    """Paused, requests fail; after resume they are served. Both calls may be repeated."""
    if not server.options.control:
        raise Skip("no --control given")
    try:
        for _ in range(2):
            _post(server, "/v1/pause")
        equal(_paused(server), True, "is_paused after pause")
        answer = server.post(CHAT, server.chat_body())
        true(
            answer.status_code != 200 or not answer.json().get("choices"),
            "a request was served while the engine is paused",
        )
        remark = f"a request while paused: HTTP {answer.status_code}"
    finally:
        for _ in range(2):
            _post(server, "/v1/resume")
    equal(_paused(server), False, "is_paused after resume")
    server.chat()
    return remark


def update_needs_pause(server: Server) -> None:
    """Without a pause, FastDeploy refuses new weights with 500."""
    if not server.options.control:
        raise Skip("no --control given")
    answer = server.post("/v1/update_weights", {"version": "no-such-version"})
    equal(answer.status_code, 500, "HTTP status")
    true("Pause LLM Engine first" in answer.text, f"the message is {answer.text[:200]!r}")


def bad_update(server: Server) -> str:
    """A version that is not there is refused, and the old weights go on serving."""
    if not server.options.control:
        raise Skip("no --control given")
    if not server.options.ours:
        raise Skip("FastDeploy may end when an update fails; --ours checks it")
    before = server.chat(return_token_ids=True)["choices"][0]["message"]["completion_token_ids"]
    _post(server, "/v1/pause")
    try:
        answer = server.post("/v1/update_weights", {"version": "no-such-version"})
    finally:
        _post(server, "/v1/resume")
    true(answer.status_code >= 400, f"HTTP {answer.status_code} for a version that is not there")
    after = server.chat(return_token_ids=True)["choices"][0]["message"]["completion_token_ids"]
    equal(after, before, "tokens after the failed update")
    return f"HTTP {answer.status_code}"


def update(server: Server) -> str:
    """Pause, update, resume."""
    version = server.options.update
    if version is None:
        raise Skip("no --update given")
    _post(server, "/v1/pause")
    try:
        result = _post(server, "/v1/update_weights", {"version": version})
    finally:
        _post(server, "/v1/resume")
    server.chat()
    return str(result)[:60]


def sleep_and_wake(server: Server) -> None:
    """Weights and cache away and back."""
    if not server.options.sleep:
        raise Skip("no --sleep given")
    _post(server, "/v1/sleep?tags=weight,kv_cache")
    _post(server, "/v1/wakeup?tags=weight,kv_cache")
    equal(_paused(server), False, "is_paused after wakeup")
    server.chat()


CHECKS: tuple[Check, ...] = (
    pause_and_resume, update_needs_pause, bad_update, update, sleep_and_wake,
)  # fmt: skip
