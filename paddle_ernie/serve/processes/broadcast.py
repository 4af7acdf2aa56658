"""Control calls to every engine process, and one answer for all of them.

The answer is the first process's, with `result`s put together and each process's own answer under
`workers`. If one process fails, its status and message are the answer: the caller must take the
call as failed everywhere, and repeat it. Calls go out one at a time, so that all processes see them
in one order.
"""

import asyncio
import json
from typing import Any

import httpx

from paddle_ernie.serve.api.errors import ErrorCode, ErrorType, error_body
from paddle_ernie.serve.middleware.asgi import Scope
from paddle_ernie.serve.processes.fleet import Fleet, Member
from paddle_ernie.serve.processes.fleet_state import succeeded

CONTROL_PATHS = frozenset(
    {
        "/v1/abort_requests",
        "/v1/pause",
        "/v1/resume",
        "/v1/is_paused",
        "/v1/sleep",
        "/v1/wakeup",
        "/v1/update_weights",
        "/clear_load_weight",
        "/update_model_weight",
        "/control_scheduler",
    }
)


async def broadcast(fleet: Fleet, scope: Scope, body: bytes) -> tuple[int, dict[str, Any]]:
    """Make the call everywhere; (status, body) for the caller."""
    path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
    url = f"{path}?{query}" if query else path
    # An abort must not wait behind a weight update that takes long.
    if path == "/v1/abort_requests":
        return combine(await _call_all(fleet, scope["method"], url, body))
    async with fleet.lock:
        answers = await _call_all(fleet, scope["method"], url, body)
        if all(succeeded(status, content) for status, content in answers):
            fleet.state.note(path, query, body)
    return combine(answers)


async def _call_all(fleet: Fleet, method: str, url: str, body: bytes) -> list[tuple[int, bytes]]:
    headers = {"content-type": "application/json"} if body else {}

    async def call(member: Member) -> tuple[int, bytes]:
        try:
            response = await member.client.request(method, url, content=body, headers=headers)
        except httpx.HTTPError as error:
            message = f"engine process {member.index} was lost ({type(error).__name__})"
            lost = error_body(message, ErrorType.SERVER, code=ErrorCode.CONNECTION_ERROR)
            return 502, json.dumps({"status": "error", **lost}).encode()
        return response.status_code, response.content

    return list(await asyncio.gather(*(call(member) for member in fleet.ready)))


def combine(answers: list[tuple[int, bytes]]) -> tuple[int, dict[str, Any]]:
    """One (status, body) of several."""
    bodies = [_parse(content) for _, content in answers]
    workers = [
        {"status_code": status, **body} for (status, _), body in zip(answers, bodies, strict=True)
    ]
    failed = [i for i, (status, content) in enumerate(answers) if not succeeded(status, content)]
    if failed:
        status = answers[failed[0]][0]
        return status if status != 200 else 500, {**bodies[failed[0]], "workers": workers}
    if not any(bodies):
        return 200, {}
    combined = dict(bodies[0])
    if "result" in combined:
        combined["result"] = together([body.get("result") for body in bodies])
    return 200, {**combined, "workers": workers}


def together(results: list[Any]) -> Any:
    """Lists are joined, mappings put together key by key, truths must all hold; else the first."""
    if all(isinstance(result, list) for result in results):
        return [item for result in results for item in result]
    if all(isinstance(result, dict) for result in results):
        return {key: together([r[key] for r in results if key in r]) for key in results[0]}
    if all(isinstance(result, bool) for result in results):
        return all(results)
    return results[0]


def _parse(content: bytes) -> dict[str, Any]:
    if not content:
        return {}
    try:
        parsed = json.loads(content)
    except ValueError:
        return {"message": content.decode("utf-8", "replace")[:1000]}
    return parsed if isinstance(parsed, dict) else {"result": parsed}


async def abort_all(fleet: Fleet) -> None:
    """End every request of every process; their clients are told."""
    await _call_all(fleet, "POST", "/v1/abort_requests", b'{"abort_all": true}')
