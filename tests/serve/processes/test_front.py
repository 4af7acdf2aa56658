"""The front over two real processes of a small application."""

import asyncio
import contextlib
import functools
import json
import signal

import httpx
import psutil
import pytest

from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.middleware import access_log, limits
from paddle_ernie.serve.processes import fleet
from paddle_ernie.serve.processes.fleet import Fleet, FleetError
from paddle_ernie.serve.processes.front import create_front, prompt_beginning
from tests.serve.small_process import target
from tests.serve.small_server import Running, listening, until


@contextlib.asynccontextmanager
async def fronted(tmp_path, size=2, **options):
    """A front over `size` processes; (Running without an engine, the fleet)."""
    settings = ServerSettings(access_log=tmp_path / "front.jsonl", **options)
    processes = Fleet(functools.partial(target, tmp_path), size)
    await processes.start()
    try:
        app = create_front(processes, prefix_affinity=settings.prefix_affinity)
        limits.install(app, settings)
        access_log.install(app, settings.access_log)
        async with listening(app, settings) as (client, port):
            yield Running(None, app, client, port, settings.access_log), processes
    finally:
        await processes.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """run(test): awaits `test(server, fleet, folder)` with a front over two processes."""
    folder = tmp_path_factory.mktemp("front")
    loop = asyncio.new_event_loop()
    stack = contextlib.AsyncExitStack()
    pair = loop.run_until_complete(stack.enter_async_context(fronted(folder, api_keys=("key",))))
    pair[0].client.headers["authorization"] = "Bearer key"
    yield lambda test: loop.run_until_complete(test(*pair, folder))
    loop.run_until_complete(_close(stack))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _close(stack: contextlib.AsyncExitStack) -> None:
    await stack.aclose()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _another(server) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.client.base_url, headers=server.client.headers, timeout=60
    )


def engine_lines(tmp_path) -> list[dict]:
    file = tmp_path / "engines.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_requests_go_through_spread_out_and_are_logged_once(pair):
    async def main(server, _fleet, folder):
        wrong = {"authorization": "Bearer else"}
        assert (await server.client.post("/v1/echo", headers=wrong)).status_code == 401
        echo = await server.client.post("/v1/echo", content=b"x" * 300_000)
        assert echo.json()["bytes"] == 300_000
        assert echo.json()["client"].startswith("key-")
        assert (await server.client.get("/nowhere")).status_code == 404
        body = {"tokens": 20, "pause": 0.02, "stream": True, "size": 100}
        ids = [{"x-request-id": f"r{i}"} for i in range(8)]
        answers = await asyncio.gather(
            *(server.client.post("/v1/completions", json=body, headers=h) for h in ids)
        )
        expected = "".join(f"data: {i}{'x' * 100}\n\n" for i in range(20))
        for answer, header in zip(answers, ids, strict=True):
            assert answer.text == expected
            assert answer.headers.get_list("x-request-id") == [header["x-request-id"]]
            assert len(answer.headers.get_list("date")) == 1
        lines = [line for line in engine_lines(folder) if line["path"] == "/v1/completions"]
        assert sorted(line["request_id"] for line in lines) == [f"r{i}" for i in range(8)]
        assert all(line["completion_tokens"] == 20 for line in lines)
        assert [line["status"] for line in server.lines()] == [401]
        text = (await server.client.get("/metrics")).text
        assert "fastdeploy:request_success_total 8.0" in text
        assert "fastdeploy:max_gpu_block_num 20.0" in text  # ten in each process
        assert "fastdeploy:weight_version 7.0" in text
        assert "fastdeploy:engine_processes_ready 2.0" in text
        assert 'fastdeploy:e2e_request_latency_seconds_bucket{le="+Inf"} 8.0' in text

    pair(main)


def test_streams_arrive_as_they_are_made_and_end_when_the_client_leaves(pair):
    async def main(server, processes, folder):
        body = {"tokens": 1000, "pause": 0.02, "stream": True}
        async with server.client.stream("POST", "/v1/completions", json=body) as answer:
            async for piece in answer.aiter_text():
                assert piece.startswith("data: 0")
                break
            assert sum(member.in_flight for member in processes.members) == 1
            ours = answer.headers["x-request-id"]

        def outcome_of() -> dict[str, str]:
            return {line["request_id"]: line["outcome"] for line in engine_lines(folder)}

        await until(lambda: ours in outcome_of())
        assert outcome_of()[ours] == "disconnected"
        await until(lambda: sum(member.in_flight for member in processes.members) == 0)
        await until(lambda: server.app.state.gate.running == 0)

    pair(main)


def test_control_calls_reach_all_and_fail_if_one_fails(pair):
    async def main(server, processes, folder):
        post = server.client.post
        assert (await post("/v1/pause")).json()["status"] == "success"
        paused = (await server.client.get("/v1/is_paused")).json()
        assert paused["result"] == {"is_paused": True} and len(paused["workers"]) == 2
        updated = (await post("/v1/update_weights", json={"version": "5"})).json()
        assert updated["result"] == [{"version": "5"}, {"version": "5"}]
        failed = await post("/v1/update_weights", json={"version": "broken for one"})
        assert failed.status_code == 500
        assert failed.json()["error_message"] == "no such version"
        assert [w["status_code"] for w in failed.json()["workers"]] == [200, 500]
        assert json.loads(processes.state.update) == {"version": "5"}

    pair(main)


@pytest.mark.slow
def test_a_process_that_hangs_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "FIRST_BACKOFF_SECONDS", 0.1)
    monkeypatch.setattr(fleet, "HEALTH_SECONDS", 0.2)
    monkeypatch.setattr(fleet, "HEALTH_TIMEOUT_SECONDS", 1.0)

    async def main():
        async with fronted(tmp_path, size=1) as (server, processes):
            answer = await server.client.post("/hang")
            assert answer.status_code == 502
            await until(lambda: len(processes.ready) == 1, 30)
            pid = (await server.client.get("/who")).json()["pid"]
        assert not psutil.pid_exists(pid), "left behind"

    asyncio.run(main())


def test_a_fleet_that_cannot_start_says_so(tmp_path):
    (tmp_path / "broken").touch()

    async def main():
        with pytest.raises(FleetError, match="exit code 7"):
            async with fronted(tmp_path):
                pass

    asyncio.run(main())


def test_prompts_that_begin_alike_go_to_one_process_until_it_is_busy(pair):
    async def main(server, processes, folder):
        front = server.app.routes[-1].app
        turn = {"messages": [{"role": "system", "content": "x" * 600}]}
        longer = {"messages": [*turn["messages"], {"role": "user", "content": "y"}]}
        homes = {front.choose(json.dumps(b).encode()).index for b in (turn, longer)}
        assert len(homes) == 1
        others = {front.choose(json.dumps({"prompt": str(i)}).encode()).index for i in range(40)}
        assert others == {0, 1}
        home = processes.members[homes.pop()]
        home.in_flight = 100
        assert front.choose(json.dumps(turn).encode()) is not home
        home.in_flight = 1
        assert front.choose(b"no json") is not home
        home.in_flight = 0

    pair(main)


def test_what_prompts_share():
    ids = {"prompt_token_ids": list(range(1000)), "prompt": "x"}
    assert prompt_beginning(json.dumps(ids).encode()).startswith(b"[0, 1, 2")
    assert prompt_beginning(b"[1]") is None
    assert prompt_beginning(b'{"prompt": ""}') is None


def test_no_connection_is_held_after_many_requests(pair):
    async def main(server, _fleet, folder):
        own = psutil.Process()
        body = {"tokens": 2, "stream": True}

        async def ask(client):
            return (await client.post("/v1/completions", json=body)).status_code

        async with _another(server) as client:
            assert set(await asyncio.gather(*(ask(client) for _ in range(20)))) == {200}
            before = own.num_fds()
            for _ in range(5):
                assert set(await asyncio.gather(*(ask(client) for _ in range(20)))) == {200}
            assert own.num_fds() <= before + 5

    pair(main)


def test_a_process_that_dies_is_noticed_replaced_and_brought_up_to_date(pair):
    async def main(server, processes, folder):
        await server.client.post("/v1/pause")
        await server.client.post("/v1/update_weights", json={"version": "5"})
        await server.client.post("/v1/resume")
        body = {"tokens": 100, "pause": 0.05, "stream": True}
        streams = [
            asyncio.ensure_future(server.client.post("/v1/completions", json=body))
            for _ in range(2)
        ]
        await until(lambda: [m.in_flight for m in processes.members] == [1, 1])
        await asyncio.sleep(0.2)
        old = processes.members[0].process.pid
        psutil.Process(old).send_signal(signal.SIGKILL)
        await until(lambda: sum(stream.done() for stream in streams) == 1)
        lost = next(stream for stream in streams if stream.done()).result().text
        assert lost.startswith("data: 0\n\n")
        assert "engine process 0 was lost" in lost and lost.endswith("data: [DONE]\n\n")
        assert server.lines()[-1]["outcome"] == "error"
        assert (await server.client.get("/health")).status_code == 200
        whole = await streams[0] if streams[1].done() else await streams[1]
        assert whole.text.endswith("data: 99\n\n")
        await until(lambda: len(processes.ready) == 2, 30)
        answers = [(await m.client.get("/who")).json() for m in processes.members]
        assert [a["version"] for a in answers] == ["5", "5"]
        assert not any(a["paused"] for a in answers)
        assert answers[0]["pid"] != old
        assert processes.members[0].restarts == 1
        answer = await server.client.post("/die")
        assert answer.status_code == 502
        assert "was lost" in answer.json()["error"]["message"]

    pair(main)
