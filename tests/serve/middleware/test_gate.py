"""The number of requests inside, and the door that closes."""

import asyncio

from tests.serve.small_server import running, until


def test_one_too_many_is_refused_and_control_calls_pass(tmp_path):
    async def main():
        async with running(tmp_path, max_concurrency=2) as server:
            slow = {"tokens": 1, "pause": 30}
            waiting = [
                asyncio.ensure_future(server.client.post("/v1/completions", json=slow))
                for _ in range(2)
            ]
            await until(lambda: server.engine.inside == 2)
            third = await server.client.post("/v1/completions", json=slow)
            assert third.status_code == 429
            assert third.json() == {"detail": "Too many requests,current max concurrency is 2"}
            assert third.headers["retry-after"] == "1"
            assert (await server.client.post("/v1/echo")).status_code == 200
            waiting[0].cancel()
            await until(lambda: server.app.state.gate.running == 1)
            quick = await server.client.post("/v1/completions", json={"tokens": 1})
            assert quick.status_code == 200
            waiting[1].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await until(lambda: server.app.state.gate.running == 0)
            assert server.engine.inside == 0

    asyncio.run(main())


def test_a_closed_gate_refuses_new_requests_and_empties(tmp_path):
    async def main():
        async with running(tmp_path) as server:
            gate = server.app.state.gate
            body = {"tokens": 3, "pause": 0.1}
            running_one = asyncio.ensure_future(server.client.post("/v1/completions", json=body))
            await until(lambda: gate.running == 1)
            gate.close()
            for answer in (
                await server.client.post("/v1/completions", json=body),
                await server.client.get("/health"),
            ):
                assert answer.status_code == 503
                assert answer.json()["error"]["message"] == "The server is shutting down"
            assert (await server.client.post("/v1/echo")).status_code == 200
            assert not await gate.wait_empty(0.01)
            assert await gate.wait_empty(10)
            assert (await running_one).json() == [f"data: {i}\n\n" for i in range(3)]

    asyncio.run(main())
