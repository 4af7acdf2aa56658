"""Requests whose time is up, and those whose client left."""

import asyncio

import httpx
import pytest

from tests.serve.small_server import running, until


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_ends_when_its_time_is_up(tmp_path, stream):
    async def main():
        async with running(tmp_path, request_timeout_s=0.3) as server:
            body = {"tokens": 1000, "pause": 0.02, "stream": stream}
            answer = await server.client.post("/v1/completions", json=body)
            if stream:
                assert answer.status_code == 200
                assert answer.text.startswith("data: 0\n\ndata: 1\n\n")
                assert '"code": "timeout"' in answer.text
                assert answer.text.endswith("data: [DONE]\n\n")
            else:
                assert answer.status_code == 408
                assert answer.json()["error"]["code"] == "timeout"
            assert (server.engine.inside, server.app.state.gate.running) == (0, 0)
            assert server.lines()[-1]["outcome"] == "timeout"
            quick = await server.client.post("/v1/completions", json={"tokens": 1})
            assert quick.status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(tmp_path, stream):
    async def main():
        async with running(tmp_path) as server:
            body = {"tokens": 10_000, "pause": 0.01, "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                async with server.client.stream(
                    "POST", "/v1/completions", json=body, timeout=0.3
                ) as answer:
                    async for _ in answer.aiter_raw():
                        await asyncio.sleep(0.5)
                        raise httpx.ReadTimeout("leaves")
            await until(lambda: server.engine.inside == 0)
            assert server.engine.cancelled == 1
            await until(lambda: server.app.state.gate.running == 0)
            assert server.lines()[-1]["outcome"] == "disconnected"

    asyncio.run(main())
