"""Keys, bodies and their limits, over real connections."""

import asyncio

import pytest

from paddle_ernie.serve.middleware.limits import api_keys
from tests.serve.small_server import running


def test_requests_need_one_of_the_keys(tmp_path):
    async def main():
        async with running(tmp_path, api_keys=("first", "second")) as server:
            post = server.client.post
            for key in ("first", "second"):
                answer = await post("/v1/echo", headers={"Authorization": f"Bearer {key}"})
                assert answer.status_code == 200
                assert answer.json()["client"].startswith("key-")
            for value in ("", "Bearer", "first", "Bearer firs", "Basic first", "Bearer first2"):
                answer = await post("/v1/echo", headers={"Authorization": value})
                assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
            assert (await post("/v1/echo")).status_code == 401
            assert (await server.client.get("/nothing/here")).status_code == 401
            for path in ("/health", "/metrics"):
                assert (await server.client.get(path)).status_code == 200
        log = server.log.read_text()
        assert "first" not in log and "second" not in log
        assert [line["outcome"] for line in server.lines()].count("refused") == 8

    asyncio.run(main())


def test_keys_of_the_environment_count_when_none_are_given():
    assert api_keys((), {"FD_API_KEY": "a, b"}) == ("a", "b")
    assert api_keys(("", "c"), {"FD_API_KEY": "a"}) == ("c",)
    assert api_keys((), {}) == ()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_bounded_with_and_without_a_declared_length(tmp_path, chunked):
    async def body(size):
        for _ in range(size // 1000):
            yield b"x" * 1000

    async def main():
        async with running(tmp_path, max_body_bytes=100_000) as server:
            for size, status in ((100_000, 200), (101_000, 413), (2_000_000, 413)):
                content = body(size) if chunked else b"x" * size
                answer = await server.client.post("/v1/echo", content=content)
                assert answer.status_code == status
                if status == 200:
                    assert answer.json()["bytes"] == size
                else:
                    assert "expected at most 100000 bytes" in answer.json()["error"]["message"]
            assert (await server.client.post("/v1/echo", content=b"x")).status_code == 200

    asyncio.run(main())


def test_a_body_that_does_not_come_times_out(tmp_path):
    async def main():
        async with running(tmp_path, request_timeout_s=0.3) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 408")
            assert server.lines()[-1]["status"] == 408

    asyncio.run(main())
