"""Clients that do not read, and ones that never ask."""

import asyncio
import json
import socket
import time

from tests.serve.small_server import running, until


def silent_request(port: int, body: dict, room: int = 4096) -> socket.socket:
    """Sends a request and reads nothing of the answer; little room in the kernel for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.connect(("127.0.0.1", port))
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    client.sendall(head.encode() + content)
    return client


def test_who_does_not_read_is_dropped_and_others_are_not_held_up(tmp_path):
    async def main():
        async with running(tmp_path, stream_write_timeout_s=1.0) as server:
            endless = {"tokens": 10**9, "size": 100_000, "stream": True}
            lazy = [silent_request(server.port, endless) for _ in range(5)]
            await until(lambda: server.engine.inside == 5)
            began, worst = time.monotonic(), 0.0
            while server.engine.inside:
                assert time.monotonic() < began + 15
                asked = time.monotonic()
                quick = await server.client.post(
                    "/v1/completions", json={"tokens": 5, "stream": True}
                )
                assert quick.status_code == 200
                worst = max(worst, time.monotonic() - asked)
                await asyncio.sleep(0.02)
            assert time.monotonic() - began > 0.5
            assert worst < 0.9, "waited for clients that do not read"
            assert server.app.state.gate.running == 0
            for client in lazy:
                client.close()

    asyncio.run(main())


def test_who_reads_slowly_gets_everything(tmp_path):
    async def main():
        async with running(tmp_path, stream_write_timeout_s=0.4) as server:
            body = {"tokens": 1, "size": 8_000_000}
            client = silent_request(server.port, body, room=100_000)
            client.settimeout(10)
            began, got = time.monotonic(), 0
            while got < 8_000_000:
                await asyncio.sleep(0.01)
                piece = await asyncio.to_thread(client.recv, 60_000)
                assert piece, f"dropped after {got} bytes"
                got += len(piece)
            assert time.monotonic() - began > 2 * 0.4, "was not slow"
            client.close()

    asyncio.run(main())


def test_who_never_asks_is_dropped(tmp_path):
    async def main():
        async with running(tmp_path, stream_write_timeout_s=0.3) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    asyncio.run(main())
