"""Many streams at once against a running server, of clients that behave as badly as they can.

Each of `num_clients` tasks asks again and again: some read to the end, some leave in the middle,
some close the socket at once or without reading, some are aborted by another call. Afterwards
nothing of it may be left: slots, pages, descriptors, memory.
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil

from tests.serve.real_server import Server

SLOW_READERS = 0.03  # share of requests whose client connects, asks and does not read for a while


@dataclass
class Soak:
    """One run; `outcomes` counts how requests went."""

    server: Server
    num_clients: int
    seconds: float
    seed: int = 0
    outcomes: Counter = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)
    """Requests whose stream is open."""

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.num_clients)
        async with httpx.AsyncClient(
            base_url=self.server.url, limits=limits, timeout=300
        ) as client:
            end = time.monotonic() + self.seconds
            aborting = asyncio.ensure_future(self._abort(client))
            await asyncio.gather(
                *(self._client(client, index, end) for index in range(self.num_clients))
            )
            aborting.cancel()

    async def _abort(self, client: httpx.AsyncClient) -> None:
        """Ends requests of others, whatever their state."""
        rng = random.Random(self.seed)
        while True:
            await asyncio.sleep(0.1)
            some = rng.sample(
                sorted(self.asked), min(len(self.asked), max(1, len(self.asked) // 50))
            )
            await client.post("/v1/abort_requests", json={"req_ids": some})

    async def _client(self, client: httpx.AsyncClient, index: int, end: float) -> None:
        rng = random.Random(self.seed * 100_003 + index)
        count = 0
        while time.monotonic() < end:
            count += 1
            name = f"soak-{index}-{count}"
            try:
                if rng.random() < SLOW_READERS:
                    await self._rude(rng, name)
                else:
                    await self._ask(client, rng, name)
            except (httpx.HTTPError, OSError) as error:
                self.outcomes[type(error).__name__] += 1

    async def _ask(self, client: httpx.AsyncClient, rng: random.Random, name: str) -> None:
        leave_after = rng.choice([None, None, 1, 3, 10])
        body = self._body(rng, name)
        self.asked.add(f"chatcmpl-{name}")
        try:
            await self._read(client, rng, body, leave_after)
        finally:
            self.asked.discard(f"chatcmpl-{name}")

    async def _read(
        self, client: httpx.AsyncClient, rng: random.Random, body: dict, leave_after: int | None
    ) -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                self.outcomes[str(answer.status_code)] += 1
                return await asyncio.sleep(0.1 * rng.random())
            text, chunks = "", 0
            async for piece in answer.aiter_text():
                text += piece
                chunks += 1
                if chunks == leave_after:
                    self.outcomes["left"] += 1
                    return
        reasons = {c["finish_reason"] for c in choices(text) if c.get("finish_reason")}
        assert text.endswith("data: [DONE]\n\n"), text[-300:]
        self.outcomes["+".join(sorted(reasons)) or text[-300:]] += 1

    async def _rude(self, rng: random.Random, name: str) -> None:
        """Sends a request, and closes without having read."""
        host, port = self.server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(self._body(rng, name)).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"content-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body))
        writer.write(body[: rng.choice([len(body), len(body) // 2])])
        await asyncio.sleep(rng.random())
        self.outcomes["did not read"] += 1
        writer.transport.abort()

    def _body(self, rng: random.Random, name: str) -> dict:
        words = " ".join(rng.choice(["def", "main", "return", "42", "naïve"]) for _ in range(20))
        max_tokens = rng.randint(1, 60)
        return {
            "messages": [{"role": "user", "content": words[: rng.randint(1, 100)]}],
            "max_tokens": max_tokens,
            "min_tokens": rng.choice([0, max_tokens]),
            "temperature": rng.choice([0, 1]),
            "stream": True,
            "request_id": name,
            "n": rng.choice([1, 1, 2]),
        }


def choices(text: str) -> list[dict]:
    """Of all chunks of a stream."""
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    return [choice for event in events for choice in event.get("choices", [])]


@dataclass(frozen=True)
class Footprint:
    """What a server holds."""

    descriptors: int
    threads: int
    resident_mib: float
    running: float
    waiting: float
    free_pages: float

    @classmethod
    def of(cls, server: Server) -> "Footprint":
        family = [psutil.Process(server.process.pid), *server.children()]
        metrics = server.metrics()
        return cls(
            sum(member.num_fds() for member in family),
            sum(member.num_threads() for member in family),
            sum(member.memory_info().rss for member in family) / 2**20,
            metrics["num_requests_running"],
            metrics["num_requests_waiting"],
            metrics["available_gpu_block_num"],
        )


def settled(server: Server, before: Footprint, seconds: float = 30) -> Footprint:
    """The footprint once nothing runs any more and connections are closed, or after a while."""
    end = time.monotonic() + seconds
    while True:
        now = Footprint.of(server)
        idle = now.running == now.waiting == 0 and now.free_pages == before.free_pages
        if (idle and now.descriptors <= before.descriptors + 2) or time.monotonic() > end:
            return now
        time.sleep(0.2)
