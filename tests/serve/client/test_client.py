"""The client against our real server, and against servers that are paused, full or broken."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from paddle_ernie.serve.client.client import RolloutClient
from paddle_ernie.serve.client.types import Retry, ServerError
from paddle_ernie.serve.types import FinishReason, SamplingParams, VersionSpan
from tests.serve.engines import TINY
from tests.serve.live_server import serving
from tests.serve.snapshots import save_snapshot

PROMPT = [30, 31, 32, 33, 34]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=1.0, max_tokens=400, ignore_eos=True, seed=3, logprobs=20)
QUICK = Retry(total_s=0.3, first_s=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Snapshots of versions 1 and 2."""
    path = tmp_path_factory.mktemp("client") / "weights"
    for step in (1, 2):
        save_snapshot(path / str(step), step)
    return path


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    engine = {"weights_dir": folder}
    with serving(folder / "1", folder.parent, engine, max_concurrency=4) as server:
        yield server.url


def using(url: str, work: Callable[[RolloutClient], Awaitable[object]], **options) -> object:
    """Run `work(client)`."""

    async def main() -> object:
        async with RolloutClient(url, **options) as client:
            return await asyncio.wait_for(work(client), 60)

    return asyncio.run(main())


def test_ids_go_in_and_come_out(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        first, second = [await client.generate(PROMPT, GREEDY) for _ in range(2)]
        assert first.choice.token_ids == second.choice.token_ids
        assert len(first.choice.token_ids) == first.completion_tokens == 6
        assert first.prompt_token_ids == tuple(PROMPT) and first.prompt_tokens == 5
        assert first.choice.finish_reason is FinishReason.LENGTH
        assert first.id.startswith("chatcmpl-")
        assert first.choice.logprobs is None and first.choice.routes is None

    using(url, work)


def test_what_training_needs_comes_along(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        sampling = SamplingParams(
            max_tokens=6, ignore_eos=True, seed=5, logprobs=0, temp_scaled_logprobs=True
        )
        reply = await client.generate(PROMPT, sampling, routes=True, user="run_1:7:0:0:0")
        choice = reply.choice
        assert choice.logprobs is not None and len(choice.logprobs) == 6
        assert all(value <= 0 for value in choice.logprobs)
        assert choice.version_spans == (VersionSpan(0, 6, 1),)
        assert choice.routes is not None
        assert choice.routes.shape == (len(PROMPT) + 6 - 1, len(TINY.moe_layers), TINY.moe_k)
        assert choice.routes.max() < TINY.moe_num_experts
        assert reply.id.startswith("chatcmpl-run_1:7:0:0:0-")

    using(url, work)


def test_sampling_arrives_as_it_was_meant(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        first = (await client.generate(PROMPT, GREEDY)).choice.token_ids[0]
        banned = SamplingParams(
            temperature=0.0, max_tokens=1, ignore_eos=True, logit_bias={first: -100.0}
        )
        assert (await client.generate(PROMPT, banned)).choice.token_ids[0] != first
        stopped = SamplingParams(temperature=0.0, stop_token_ids=frozenset({first}))
        choice = (await client.generate(PROMPT, stopped)).choice
        assert choice.finish_reason is FinishReason.STOP
        two = await client.generate(PROMPT, SamplingParams(max_tokens=2, ignore_eos=True), n=2)
        assert [choice.index for choice in two.choices] == [0, 1]

    using(url, work)


def test_a_chat_has_text(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        reply = await client.chat([{"role": "user", "content": "def main"}], GREEDY)
        assert reply.choice.text and reply.prompt_tokens > 0

    using(url, work)


def test_a_stream_brings_the_same_in_pieces(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
        whole = (await client.generate(PROMPT, sampling)).choice
        pieces = [piece async for piece in client.stream(PROMPT, sampling)]
        assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
        assert "".join(piece.text for piece in pieces) == whole.text
        values = [value for piece in pieces for value in piece.logprobs or ()]
        assert values == list(whole.logprobs or ())
        assert [p.finish_reason for p in pieces if p.finish_reason] == [FinishReason.LENGTH]

    using(url, work)


def test_leaving_a_stream_frees_its_place(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        for _ in range(12):  # three times what the server takes at once
            async with aclosing(client.stream(PROMPT, LONG)) as pieces:
                async for piece in pieces:
                    if piece.token_ids:
                        break
        assert len((await client.generate(PROMPT, GREEDY)).choice.token_ids) == 6

    using(url, work)


def test_more_than_the_server_takes_are_sent_again(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        replies = await asyncio.gather(*(client.generate(PROMPT, GREEDY) for _ in range(16)))
        assert len({reply.choice.token_ids for reply in replies}) == 1

    using(url, work)


def test_an_aborted_request_is_data(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        reasons, count = [], 0
        async for piece in client.stream(PROMPT, LONG):
            if piece.token_ids and not count:
                await client.abort([piece.id])
            count += len(piece.token_ids)
            reasons += [piece.finish_reason] if piece.finish_reason else []
        assert reasons == [FinishReason.ABORT] and 0 < count < 400
        await client.abort()

    using(url, work)


def test_a_paused_server_is_waited_for(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        await client.pause()
        assert await client.is_paused()
        waiting = asyncio.create_task(client.generate(PROMPT, GREEDY))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await client.resume()
        assert not await client.is_paused()
        assert len((await waiting).choice.token_ids) == 6

    using(url, work)


def test_waiting_ends(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        await client.pause()
        try:
            with pytest.raises(ServerError, match="paused") as caught:
                await client.generate(PROMPT, GREEDY)
            assert caught.value.status == 503
        finally:
            await client.resume()

    using(url, work, retry=QUICK)


def test_new_weights_with_and_without_a_pause(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        before = await client.generate(PROMPT, GREEDY)
        with pytest.raises(ServerError, match="Pause LLM Engine first") as caught:
            await client.update_weights(2)
        assert caught.value.status == 500
        await client.update_weights("2", mode="keep")
        after = await client.generate(PROMPT, GREEDY)
        assert after.choice.version_spans == (VersionSpan(0, 6, 2),)
        assert after.choice.token_ids != before.choice.token_ids
        await client.pause()
        await client.update_weights(path="1", verify_checksum=False)
        await client.resume()
        again = await client.generate(PROMPT, GREEDY)
        assert again.choice.token_ids == before.choice.token_ids
        with pytest.raises(ServerError, match="no-such"):
            await client.update_weights("no-such", mode="keep")

    using(url, work)


def test_sleep_and_wake_up(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        before = (await client.generate(PROMPT, GREEDY)).choice.token_ids
        await client.sleep()
        assert await client.is_paused()
        await client.wakeup()
        assert (await client.generate(PROMPT, GREEDY)).choice.token_ids == before

    using(url, work)


def test_refusals_say_why_at_once(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        started = time.monotonic()
        with pytest.raises(ServerError) as caught:
            await client.generate([5] * 1000, GREEDY)
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        with pytest.raises(ServerError, match="greater than or equal to 0") as caught:
            async for _ in client.stream(PROMPT, SamplingParams(temperature=-1.0)):
                pass
        assert caught.value.status == 400
        assert time.monotonic() - started < 5

    using(url, work)


def test_what_the_api_cannot_say_is_refused_here(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        with pytest.raises(ServerError, match="words of one token"):
            await client.generate(PROMPT, SamplingParams(bad_words_token_ids=((1, 2),)))

    using(url, work)


def test_what_is_served(url: str) -> None:
    async def work(client: RolloutClient) -> None:
        assert await client.healthy()
        await client.wait_until_healthy(1)
        (card,) = await client.models()
        assert card["max_model_len"] == 512

    using(url, work)


def test_a_key_is_sent(folder: Path) -> None:
    async def work(client: RolloutClient) -> object:
        return await client.generate(PROMPT, GREEDY)

    with serving(folder / "1", folder.parent, api_keys=("secret",)) as server:
        assert using(server.url, work, api_key="secret")
        with pytest.raises(ServerError) as caught:
            using(server.url, work)
        assert caught.value.status == 401


def test_nobody_answers() -> None:
    async def work(client: RolloutClient) -> None:
        assert not await client.healthy()
        with pytest.raises(ServerError, match=r"127\.0\.0\.1:9.*Connect"):
            await client.generate(PROMPT, GREEDY)
        with pytest.raises(ServerError, match="not healthy after 0"):
            await client.wait_until_healthy(0)

    using("http://127.0.0.1:9", work, retry=QUICK)


HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
FAULT = 'data: {"error": {"message": "no memory", "type": "internal_error"}}\n\n'


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "disconnected"),
        (HEAD % 9 + "data: {}\n", r"ended without \[DONE\]"),
        (HEAD % 99 + "data: {}\n", "the stream was cut"),
        (HEAD % len(FAULT) + FAULT, r"an error within a stream.*no memory"),
    ],
)
def test_broken_streams(answer: str, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with RolloutClient(f"http://127.0.0.1:{port}", retry=QUICK) as client:
            with pytest.raises(ServerError, match=message):
                async for _ in client.stream(PROMPT, GREEDY):
                    pass
        server.close()

    asyncio.run(main())


ANSWER = (
    '{"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "five"}, '
    '"finish_reason": "stop"}]}'
)
PAUSED = '{"error": {"message": "Request is aborted since LLM Engine is paused."}}'


def test_fastdeploys_ways_to_be_busy_are_waited_out() -> None:
    left = [
        ("304 Not Modified", ""),
        ("429 Too Many Requests\r\nRetry-After: 0", '{"detail": "Too many requests"}'),
        ("500 Internal Server Error", PAUSED),
        ("503 Service Unavailable", ""),
        ("200 OK", ANSWER),
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")  # the end of the body
        status, body = left.pop(0)
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        retry = Retry(total_s=30, first_s=0.01, most_s=0.02)
        async with RolloutClient(f"http://127.0.0.1:{port}", retry=retry) as client:
            reply = await client.generate(PROMPT, GREEDY)
        server.close()
        assert reply.choice.text == "five" and left == []

    asyncio.run(main())
