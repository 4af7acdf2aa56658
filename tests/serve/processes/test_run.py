"""A server as a process: addresses, signals, how it ends."""

import contextlib
import json
import signal
import socket
import threading
import time

import httpx
import psutil
import pytest

from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.processes.run import check_binding, is_loopback, serve
from paddle_ernie.utils.errors import InputError
from tests.serve.real_server import free_port, serving

ROOM = {"max_model_len": 3000}
LONG = {"prompt": "def main", "max_tokens": 2500, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("localhost", True), ("::1", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_only_the_loopback_is_served_without_a_key(host, loopback):
    assert is_loopback(host) is loopback
    if loopback:
        return check_binding(ServerSettings(host=host))
    with pytest.raises(InputError, match="--api-key"):
        check_binding(ServerSettings(host=host))
    check_binding(ServerSettings(host=host, api_keys=("k",)))
    check_binding(ServerSettings(host=host, allow_open=True))


def test_a_port_in_use_is_said_before_a_model_is_loaded():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=rf"127.0.0.1:{port}: .*in use"):
            serve(lambda: pytest.fail("loaded"), ServerSettings(port=port))


class Stream(threading.Thread):
    """A streaming request; `text` is all of it, once joined."""

    def __init__(self, url: str, **changes) -> None:
        super().__init__()
        self.url, self.body = url, {**LONG, "stream": True, **changes}
        self.began, self.text, self.error = threading.Event(), "", None
        self.start()
        assert self.began.wait(30)

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/completions", json=self.body, timeout=60
            ) as answer:
                for piece in answer.iter_text():
                    self.text += piece
                    self.began.set()
        except httpx.HTTPError as error:
            self.error = error
        self.began.set()

    def reasons(self) -> list[str]:
        events = [line[6:] for line in self.text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return [c["finish_reason"] for c in choices if c.get("finish_reason")]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_lets_running_requests_finish_and_refuses_new_ones(tmp_path, model_dir, number):
    metrics_port = free_port()
    with serving(tmp_path, model_dir, ROOM, metrics_port=metrics_port) as server:
        check_metrics_port(server, metrics_port)
        stream = Stream(server.url)
        with httpx.Client(base_url=server.url, timeout=30) as kept:
            assert kept.get("/health").status_code == 200
            server.process.send_signal(number)
            until(lambda: kept.get("/health").status_code == 503 or not stream.is_alive())
            if stream.is_alive():
                assert kept.post("/v1/completions", json=LONG).status_code == 503
        stream.join(60)
        assert stream.error is None and stream.reasons() == ["length"]
        assert stream.text.endswith("data: [DONE]\n\n")
        assert server.process.wait(30) == 0, server.log
        assert "Traceback" not in server.log


def check_metrics_port(server, port) -> None:
    for path in ("/metrics", "/health"):
        assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "fastdeploy:num_requests_running 0.0" in text
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 404
    assert httpx.get(f"{server.url}/v1/models").status_code == 200


def until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_runs_too_long_is_aborted_and_told(tmp_path, model_dir):
    with serving(tmp_path, model_dir, ROOM, graceful_shutdown_s=0.0) as server:
        streams = [Stream(server.url, n=4) for _ in range(3)]
        assert server.end() == 0
        for stream in streams:
            stream.join(30)
            assert stream.error is None
            assert set(stream.reasons()) <= {"abort", "length"} and len(stream.reasons()) == 4
        assert any("abort" in stream.reasons() for stream in streams), server.log


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path, model_dir):
    with serving(tmp_path, model_dir, engine={"max_num_seqs": 1, **ROOM}) as server:
        streams = [Stream(server.url)]
        waiting = [threading.Thread(target=_ask, args=(server.url,)) for _ in range(30)]
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        began = time.monotonic()
        server.end(signal.SIGINT, seconds=20)
        assert time.monotonic() - began < 10
        for thread in [*streams, *waiting]:
            thread.join(30)


def _ask(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/completions", json=LONG, timeout=60)


@pytest.fixture(scope="module")
def fleet_server(tmp_path_factory, model_dir, save_model):
    """Two engine processes, with snapshots to change to."""
    folder = tmp_path_factory.mktemp("fleet")
    snapshot = save_model(folder / "weights" / "v5", seed=5)
    (snapshot / "version.yaml").write_text("step: 5\n")
    engine = {"weights_dir": folder / "weights"}
    with serving(folder, model_dir, engine={**engine, **ROOM}, workers=2) as server:
        yield server


def test_workers_answer_as_one(fleet_server):
    url = fleet_server.url
    greedy = {"prompt": "def", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    assert len(fleet_server.children()) == 2
    streams = [Stream(url, prompt=f"{i} def") for i in range(6)]
    for stream in streams:
        stream.join(60)
        assert stream.reasons() == ["length"] and stream.text.endswith("data: [DONE]\n\n")
    metrics = fleet_server.metrics()
    assert metrics["request_success_total"] == 6
    assert metrics["max_gpu_block_num"] == 240  # both engines'
    old = httpx.post(f"{url}/v1/completions", json=greedy, timeout=30).json()
    refused = httpx.post(f"{url}/v1/update_weights", json={"version": "v5"}, timeout=30)
    assert refused.status_code == 500 and "Pause LLM Engine first" in refused.text
    update = {"version": "v5", "mode": "keep"}
    updated = httpx.post(f"{url}/v1/update_weights", json=update, timeout=60).json()
    assert [report["version"] for report in updated["result"]] == [5, 5]
    assert len({report["checksum"] for report in updated["result"]}) == 1
    answers = [httpx.post(f"{url}/v1/completions", json={**greedy, "prompt": f"def{' ' * i}"},
                          timeout=30).json() for i in range(6)]  # fmt: skip
    spans = [answer["choices"][0]["version_spans"] for answer in answers]
    assert all(span == [{"start": 0, "end": 8, "version": 5}] for span in spans)
    assert answers[0]["choices"][0]["text"] != old["choices"][0]["text"]
    assert fleet_server.metrics()["weight_version"] == 5


def test_a_lost_worker_comes_back_with_the_weights_of_the_others(fleet_server):
    first = fleet_server.children()[0]
    update = {"version": "v5", "mode": "keep"}
    httpx.post(f"{fleet_server.url}/v1/update_weights", json=update, timeout=60).raise_for_status()
    first.kill()
    end = time.monotonic() + 90
    while fleet_server.metrics().get("engine_process_restarts_total") != 1 or (
        fleet_server.metrics()["engine_processes_ready"] != 2
    ):
        assert time.monotonic() < end, fleet_server.log
        assert httpx.get(f"{fleet_server.url}/health").status_code == 200
        time.sleep(0.2)
    assert first.pid not in [child.pid for child in fleet_server.children()]
    assert fleet_server.metrics()["weight_version"] == 5  # the lower of both


def test_workers_end_with_their_parent(fleet_server):
    children = fleet_server.children()
    assert len(children) == 2
    fleet_server.process.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
