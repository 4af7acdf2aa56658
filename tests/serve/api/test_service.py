"""Sequences of a request in a real engine: all or none, merged, ended when nobody listens."""

import asyncio
import gc
import time

import pytest

from paddle_ernie.serve.api.app import make_service
from paddle_ernie.serve.api.chat_template import Prompt
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.protocol import CompletionRequest
from paddle_ernie.serve.api.service import LONG_TEXT_CHARS
from paddle_ernie.serve.api.settings import RoutingReplay, ServerSettings
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.worker import EngineWorker
from paddle_ernie.serve.middleware.access_log import RequestRecord
from paddle_ernie.serve.types import FinishReason
from paddle_ernie.utils.errors import InputError

PROMPT = Prompt((40, 41, 42), "abc")
WAIT_SECONDS = 30


@pytest.fixture
def in_service(model_dir):
    """in_service(coroutine function, **EngineOptions): run it with a service on an engine."""

    def run(body, settings=None, **options):
        async def main():
            room = {"num_pages": 60, "max_model_len": 3840}
            worker = EngineWorker(model_dir, EngineOptions(**{**room, **options}))
            await worker.start()
            try:
                service = make_service(worker, settings or ServerSettings())
                return await asyncio.wait_for(body(service), WAIT_SECONDS)
            finally:
                await worker.close()

        return asyncio.run(main())

    return run


def request(**fields) -> CompletionRequest:
    return CompletionRequest(prompt="x", **{"max_tokens": 8, "ignore_eos": True, **fields})


def record() -> RequestRecord:
    return RequestRecord("r", "POST", "/", "me", time.monotonic())


async def read(generation, forever: bool) -> None:
    async with generation:
        async for _ in generation.outputs():
            if not forever:
                return


async def until_idle(service) -> None:
    while service.worker.stats.running or service.worker.stats.waiting:
        await asyncio.sleep(0.005)


def test_outputs_of_all_sequences(in_service):
    async def body(service):
        seen = record()
        generation = service.start("r", [PROMPT, PROMPT], request(n=3), seen)
        assert service.running == {"r": tuple(f"r_{i}" for i in range(6))}
        assert service.sequence_ids(["r", "other_1"]) == [*service.running["r"], "other_1"]
        async with generation:
            outputs = await generation.whole()
        assert [len(output.token_ids) for output in outputs] == [8] * 6
        assert {output.finish_reason for output in outputs} == {FinishReason.LENGTH}
        assert service.running == {}
        assert (seen.num_sequences, seen.num_finished) == (6, 6)
        assert (seen.prompt_tokens, seen.completion_tokens) == (18, 48)

    in_service(body)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("how", ["leave", "drop", "cancel", "drop_unread"])
def test_nobody_listens_any_more(in_service, n, how):
    async def body(service):
        wish, before = request(n=n, max_tokens=2000), asyncio.all_tasks()
        generation = service.start("r", [PROMPT], wish, record())

        if how == "leave":
            await read(generation, forever=False)
        elif how == "cancel":
            task = asyncio.ensure_future(read(generation, forever=True))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
        elif how == "drop":
            outputs = generation.outputs()
            await anext(outputs)
            del outputs
        del generation
        gc.collect()
        await until_idle(service)
        assert service.running == {}
        assert service.worker.stats.generated_tokens < 2000 * n
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() <= before, "tasks that merge outputs are left"

    in_service(body)


def test_all_sequences_or_none(in_service):
    async def body(service):
        with pytest.raises(ApiError) as caught:
            service.start("r", [PROMPT], request(n=20), record())
        assert caught.value.status == 429
        assert service.running == {}
        await until_idle(service)

    in_service(body, max_num_seqs=2, max_waiting=3)


def test_what_the_engine_refuses_is_the_callers_fault(in_service):
    async def body(service):
        with pytest.raises(ApiError, match="pages") as caught:
            service.start("r", [PROMPT], request(max_tokens=2000), record())
        assert caught.value.status == 400 and service.running == {}

    in_service(body, num_pages=2)


@pytest.mark.parametrize("n", [1, 2])
def test_a_failed_engine_ends_every_sequence(in_service, n):
    async def body(service):
        async with service.start("r", [PROMPT], request(n=n, max_tokens=2000), record()) as running:
            service.worker._send(lambda engine: 1 / 0)
            with pytest.raises(ApiError, match="ZeroDivisionError") as caught:
                await running.whole()
        assert caught.value.status == 500
        with pytest.raises(ApiError, match="ZeroDivisionError") as caught:
            service.start("r", [PROMPT], request(), record())
        assert caught.value.status == 500 and service.running == {}

    in_service(body)


def test_states_in_which_nothing_is_taken(in_service):
    async def body(service):
        service.check(request())
        await service.worker.pause()
        with pytest.raises(ApiError, match="paused") as caught:
            service.check(request())
        assert caught.value.status == 503

    in_service(body)


def test_long_texts_are_encoded_beside_the_loop(in_service):
    async def body(service):
        for text in ("def main", "def main():\n" * LONG_TEXT_CHARS):
            assert await service.encode(text) == tuple(service.worker.tokenizer.encode(text))
        assert service.decode([40, 41]) == service.worker.tokenizer.decode([40, 41])
        with pytest.raises(ApiError, match="expected ids below"):
            service.decode([40, 10**6])

    in_service(body)


def test_routes_are_sent_if_asked_for_or_if_replay_is_on(in_service):
    async def body(service):
        async with service.start("r", [PROMPT], request(), record()) as generation:
            (output,) = await generation.whole()
        return service.encode_routes(output, request())

    assert in_service(body) is None
    assert in_service(body, ServerSettings(routing_replay=RoutingReplay()))["shape"] == [10, 2, 2]


def test_replay_of_a_model_without_experts(save_model, tmp_path):
    dense = save_model(tmp_path / "dense", moe_layer_start_index=3)

    async def main():
        worker = EngineWorker(dense, EngineOptions(num_pages=4))
        await worker.start()
        try:
            with pytest.raises(InputError, match="no experts"):
                make_service(worker, ServerSettings(routing_replay=RoutingReplay()))
        finally:
            await worker.close()

    asyncio.run(main())
