"""The lines, and what they say."""

import asyncio

from paddle_ernie.serve.middleware.access_log import record_of
from tests.serve.small_server import running, until


def test_a_line_per_request(tmp_path):
    async def main():
        async with running(tmp_path) as server:
            body = {"tokens": 4, "pause": 0.01, "stream": True}
            answer = await server.client.post(
                "/v1/completions", json=body, headers={"x-request-id": "mine-1"}
            )
            assert answer.headers["x-request-id"] == "mine-1"
            await server.client.get("/health")
            await server.client.get("/nowhere", headers={"x-request-id": "bad id"})
            await until(lambda: len(server.lines()) == 2)
            first, second = server.lines()
            assert first["request_id"] == "mine-1"
            assert (first["path"], first["status"], first["outcome"]) == (
                "/v1/completions", 200, "done",
            )  # fmt: skip
            assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 4)
            assert 0.01 <= first["time_to_first_token_s"] < first["duration_s"]
            assert first["bytes"] == len(answer.content)
            assert first["client"] == "127.0.0.1"
            assert (second["path"], second["status"]) == ("/nowhere", 404)
            assert second["request_id"] != "bad id" and "prompt_tokens" not in second

    asyncio.run(main())


def test_an_error_of_a_handler_is_logged_as_one(tmp_path):
    async def main():
        async with running(tmp_path) as server:
            answer = await server.client.post("/v1/completions", content=b"no json")
            assert answer.status_code == 500
            assert server.lines()[-1]["outcome"] == "error"
            assert server.app.state.gate.running == 0

    asyncio.run(main())


def test_a_record_is_made_where_no_middleware_made_one():
    scope = {"type": "http", "method": "GET", "path": "/x"}
    assert record_of(scope) is record_of(scope)
