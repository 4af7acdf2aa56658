"""The engine in its thread, as the HTTP server uses it: streams, leaving, control, failure, end."""

import asyncio
import gc
import shutil
import threading
from contextlib import asynccontextmanager

import pytest

from paddle_ernie.serve.engine.control import EngineFullError, EngineStoppedError, WeightsUpdate
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.streams import RequestStream, join_outputs
from paddle_ernie.serve.engine.worker import EngineWorker
from paddle_ernie.serve.types import FinishReason, VersionSpan
from paddle_ernie.utils.errors import CheckpointError, InputError
from tests.serve.engines import check_empty, request, run_all

PROMPT = tuple(range(40, 120))
WAIT_SECONDS = 30  # for what takes milliseconds, on a machine that does much else


@pytest.fixture
def in_worker(model_dir):
    """in_worker(coroutine function, **options): run it with a started worker, closed after."""

    @asynccontextmanager
    async def started(**options):
        small = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_pages": 40}
        options = {**small, "max_model_len": 2560, **options}
        worker = EngineWorker(model_dir, EngineOptions(**options))
        await worker.start()
        try:
            yield worker
        finally:
            await worker.close()

    def run(body, **options):
        async def main():
            async with started(**options) as worker:
                return await asyncio.wait_for(body(worker), WAIT_SECONDS)

        return asyncio.run(main())

    return run


@pytest.fixture
def snapshots(save_model, tmp_path):
    """Snapshots v1 and v2 of other weights, and folders in which something is wrong."""
    for step in (1, 2):
        save_model(tmp_path / f"v{step}", seed=step)
        (tmp_path / f"v{step}" / "version.yaml").write_text(f"step: {step}\n")
    return tmp_path


async def collect(stream: RequestStream):
    return join_outputs([output async for output in stream])


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def idle(worker: EngineWorker) -> bool:
    stats = worker.stats
    return not (worker._streams or stats.running or stats.waiting)


def test_streams_bring_what_the_engine_makes(in_worker, make_engine):
    wanted = [
        request(str(i), PROMPT[i:], max_tokens=30, temperature=1.0, seed=i, routes=True, logprobs=1)
        for i in range(12)
    ]

    async def body(worker):
        outputs = await asyncio.gather(*(collect(worker.submit(one)) for one in wanted))
        await until(lambda: idle(worker))
        return {output.request_id: output for output in outputs}, worker.stats

    found, stats = in_worker(body)
    engine = make_engine(max_num_batched_tokens=64)
    for one in wanted:
        engine.add(one)
    for name, output in run_all(engine).items():
        assert found[name].token_ids == output.token_ids
        assert found[name].logprobs == output.logprobs
        assert (found[name].routes == output.routes).all()
    assert stats.free_pages == stats.total_pages == 40
    assert stats.generated_tokens == 12 * 30


def test_leaving_a_stream_early_ends_its_request(in_worker):
    async def body(worker):
        async for _ in worker.submit(request("left", PROMPT, max_tokens=2000)):
            break
        gc.collect()
        await until(lambda: idle(worker))
        task = asyncio.ensure_future(
            collect(worker.submit(request("cut", PROMPT, max_tokens=2000)))
        )
        await until(lambda: worker.stats.running)
        task.cancel()
        await until(lambda: idle(worker))
        stream = worker.submit(request("closed", PROMPT, max_tokens=2000))
        await stream.get()
        await stream.cancel()
        assert await stream.get() is None
        await until(lambda: idle(worker))
        return worker.stats

    stats = in_worker(body)
    assert stats.aborted == 3
    assert stats.free_pages == stats.total_pages
    assert stats.generated_tokens < 1000


def test_a_consumer_that_does_not_read_stalls_nobody_and_loses_nothing(in_worker):
    async def body(worker):
        slow = worker.submit(request("slow", PROMPT, max_tokens=100))
        first = await slow.get()
        await collect(worker.submit(request("fast", PROMPT, max_tokens=300)))
        await until(lambda: idle(worker))
        rest = await slow.get()
        assert await slow.get() is None
        return join_outputs([first, rest])

    assert len(in_worker(body).token_ids) == 100


def test_what_cannot_be_served_is_said_at_once(in_worker):
    async def body(worker):
        with pytest.raises(InputError, match="empty"):
            worker.submit(request("0", ()))
        await worker.pause("keep")
        streams = [worker.submit(request(str(i), PROMPT)) for i in range(3)]
        with pytest.raises(EngineFullError, match="3 requests"):
            worker.submit(request("3", PROMPT))
        await worker.abort(["0"])
        assert (await streams[0].get()).finish_reason is FinishReason.ABORT
        with pytest.raises(InputError, match="'1' is here already"):
            worker.submit(request("1", PROMPT))
        await worker.resume()
        return [(await collect(stream)).finish_reason for stream in streams[1:]]

    assert in_worker(body, max_num_seqs=2, max_waiting=1) == [FinishReason.LENGTH] * 2


def test_a_name_is_taken_until_its_request_has_ended(in_worker):
    async def body(worker):
        stream = worker.submit(request("0", PROMPT, max_tokens=2000))
        await stream.cancel()
        with pytest.raises(InputError, match="here already"):
            worker.submit(request("0", PROMPT))
        await until(lambda: idle(worker))
        return await collect(worker.submit(request("0", PROMPT)))

    assert in_worker(body).finish_reason is FinishReason.LENGTH


def test_pause_abort_and_resume(in_worker):
    async def body(worker):
        stream = worker.submit(request("0", PROMPT, max_tokens=2000))
        await stream.get()
        await worker.pause()
        assert await worker.is_paused()
        ended = await collect(stream)
        waits = asyncio.ensure_future(collect(worker.submit(request("1", PROMPT))))
        await asyncio.sleep(0.05)
        assert not waits.done()
        await worker.resume()
        return ended, await waits

    ended, waited = in_worker(body)
    assert ended.finish_reason is FinishReason.ABORT
    assert waited.finish_reason is FinishReason.LENGTH


def test_new_weights_under_running_requests(in_worker, snapshots):
    async def body(worker):
        stream = worker.submit(request("0", PROMPT, max_tokens=2000))
        parts = [await stream.get()]
        before = await worker.checksum()
        report = await worker.update_weights(WeightsUpdate(version="v1"))
        assert (report.version, report.tensors) == (1, 28)
        assert report.checksum == await worker.checksum() == worker.info.checksum != before
        parts += [output async for output in stream]
        newest = await worker.update_weights(WeightsUpdate(mode="abort"))
        assert newest.version == worker.info.version == worker.stats.version == 2
        return join_outputs(parts)

    output = in_worker(body, weights_dir=snapshots)
    first, second = output.version_spans
    assert first == VersionSpan(0, second.start, 0)
    assert second == VersionSpan(first.end, 2000, 1)


def test_a_bad_update_leaves_the_old_weights_serving(in_worker, snapshots, save_model):
    broken = snapshots / "v2" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1] + b"\x00")
    save_model(snapshots / "v3", hidden_size=48)
    (snapshots / "v3" / "version.yaml").write_text("step: 3\n")

    async def body(worker):
        checksum = worker.info.checksum
        wanted = await collect(worker.submit(request("0", PROMPT)))
        for name, error, message in (
            ("v2", CheckpointError, "model.safetensors: altered"),
            ("v3", CheckpointError, "hidden_size=48"),
            ("v4", InputError, "has no version.yaml"),
            ("../v1", InputError, "not inside"),
        ):
            with pytest.raises(error, match=message):
                await worker.update_weights(WeightsUpdate(version=name))
        assert await worker.checksum() == checksum
        assert worker.healthy and worker.info.version == 0
        found = await collect(worker.submit(request("1", PROMPT)))
        return wanted.token_ids == found.token_ids

    assert in_worker(body, weights_dir=snapshots)


def test_sleep_and_wakeup_read_the_weights_again(in_worker, snapshots):
    async def body(worker):
        await worker.update_weights(WeightsUpdate(version="v1"))
        wanted = await collect(worker.submit(request("0", PROMPT)))
        await worker.sleep()
        assert worker.stats.sleeping == ("kv_cache", "weight")
        await worker.wakeup()
        found = await collect(worker.submit(request("0", PROMPT)))
        await worker.sleep(["weight"])
        shutil.rmtree(snapshots / "v1")
        with pytest.raises(InputError):
            await worker.wakeup()
        report = await worker.update_weights(WeightsUpdate(version="v2"))
        await worker.wakeup()
        other = await collect(worker.submit(request("0", PROMPT)))
        return wanted, found, other, report.version

    wanted, found, other, version = in_worker(body, weights_dir=snapshots)
    assert found.token_ids == wanted.token_ids != other.token_ids
    assert other.version_spans == (VersionSpan(0, 8, version),)


def test_a_failure_of_the_engine_reaches_everyone(in_worker, monkeypatch):
    async def body(worker):
        streams = [worker.submit(request(str(i), PROMPT, max_tokens=2000)) for i in range(3)]
        await streams[0].get()

        def fail(engine):
            raise RuntimeError("out of luck")

        monkeypatch.setattr(Engine, "step", fail)
        for stream in streams:
            with pytest.raises(EngineStoppedError, match="out of luck"):
                await collect(stream)
        assert not worker.healthy
        with pytest.raises(EngineStoppedError, match="out of luck"):
            worker.submit(request("9", PROMPT))
        with pytest.raises(EngineStoppedError, match="out of luck"):
            await worker.pause()
        return worker

    worker = in_worker(body)
    assert not worker._streams and not worker._calls


def test_closing_drains_and_then_ends(model_dir):
    before = set(threading.enumerate())  # other tests' servers may be running

    async def main(drain):
        worker = EngineWorker(model_dir, EngineOptions(num_pages=40))
        with pytest.raises(EngineStoppedError, match="not been started"):
            worker.submit(request("0", PROMPT))
        await worker.close()
        await worker.start()
        result = asyncio.ensure_future(
            collect(worker.submit(request("0", PROMPT, max_tokens=2000)))
        )
        await until(lambda: worker.stats.running)
        closing = asyncio.ensure_future(worker.close(drain))
        await asyncio.sleep(0)
        with pytest.raises(EngineStoppedError, match="shutting down"):
            worker.submit(request("1", PROMPT))
        await closing
        assert not worker.healthy
        await worker.close()
        return await result

    assert asyncio.run(main(WAIT_SECONDS)).finish_reason is FinishReason.LENGTH
    assert asyncio.run(main(0)).finish_reason is FinishReason.ABORT
    assert set(threading.enumerate()) <= before, "a thread is left"


def test_a_model_that_cannot_be_loaded_is_said_by_start(tmp_path):
    with pytest.raises(InputError, match="not a model directory"):
        asyncio.run(EngineWorker(tmp_path / "none").start())


def test_hundreds_of_streams_that_come_and_go_leave_nothing(in_worker):
    held = []

    async def one(worker, number):
        stream = worker.submit(
            request(str(number), PROMPT[: 1 + number % 70], max_tokens=1 + number % 40)
        )
        if number % 3 == 0:
            await asyncio.sleep(0.001 * (number % 7))
            return await stream.cancel()
        async for _ in stream:
            if number % 5 == 0:
                break

    async def body(worker):
        monitor = worker._run_commands
        worker._run_commands = lambda engine: (held.append(engine), monitor(engine))[1]
        await asyncio.gather(*(one(worker, number) for number in range(300)))
        gc.collect()
        await until(lambda: idle(worker))
        return worker.stats

    stats = in_worker(body, num_pages=10)
    assert stats.finished == 300
    check_empty(held[-1])
