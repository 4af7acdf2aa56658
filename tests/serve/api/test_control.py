"""Control over a running server: pauses, aborts, sleep, new weights; what it says of itself."""

import shutil
import threading
import time

import openai
import pytest

from paddle_ernie.serve.api.responses import (
    ChatCompletion,
    ControlResponse,
    ErrorResponse,
    ModelList,
)
from tests.serve.live_server import serving

CHAT, PROMPT = "/v1/chat/completions", "/v1/completions"
ROOM = {"max_model_len": 3000}
LONG = {"max_tokens": 2500, "min_tokens": 2500, "temperature": 0}


@pytest.fixture(scope="module")
def snapshots(save_model, tmp_path_factory):
    """Two versions of other weights, and one that is damaged."""
    folder = tmp_path_factory.mktemp("weights")
    for step in (1, 2, 3):
        save_model(folder / f"v{step}", seed=step)
        (folder / f"v{step}" / "version.yaml").write_text(f"step: {step}\n")
    (folder / "v3" / "version.yaml").unlink()
    shutil.copytree(folder / "v1", folder / "bad")
    file = folder / "bad" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"\x00" * 8)
    return folder


@pytest.fixture
def server(model_dir, snapshots, tmp_path):
    """A tiny model that can be given other weights."""
    with serving(model_dir, tmp_path, engine={"weights_dir": snapshots, **ROOM}) as running:
        yield running


def control(server, call, status=200, method="POST", **body) -> dict:
    answer = server.client.request(method, call, json=body or None)
    assert answer.status_code == status, answer.text
    report = ControlResponse.model_validate(answer.json())
    assert report.status == ("success" if status == 200 else "error")
    assert (report.error_message is None) == (status == 200)
    return answer.json()


class Background:
    """A request in a thread; `answer` waits for it."""

    def __init__(self, server, **fields) -> None:
        before = server.worker.stats.prompt_tokens
        self._thread = threading.Thread(target=self._run, args=(server, fields))
        self._thread.start()
        until(lambda: server.worker.stats.prompt_tokens > before)

    def _run(self, server, fields) -> None:
        self._answer = server.post(PROMPT, prompt="def", **{**LONG, **fields})

    @property
    def answer(self):
        self._thread.join(30)
        return self._answer


def until(condition, seconds=10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def choice(answer) -> dict:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_pause_ends_what_runs_and_refuses_what_comes(server):
    running = Background(server)
    control(server, "/v1/pause")
    control(server, "/v1/pause")
    ended = choice(running.answer)
    assert ended["finish_reason"] == "abort"
    assert control(server, "/v1/is_paused", method="GET")["result"] == {"is_paused": True}
    refused = server.post(CHAT, messages=[{"role": "user", "content": "x"}])
    assert refused.status_code == 503 and "choices" not in refused.json()
    assert ErrorResponse.model_validate(refused.json()).error.message.endswith("is paused.")
    assert refused.headers["retry-after"]
    control(server, "/v1/resume")
    control(server, "/v1/resume")
    assert control(server, "/v1/is_paused", method="GET")["result"] == {"is_paused": False}
    assert choice(server.post(PROMPT, prompt="x", max_tokens=2))["finish_reason"] == "length"


def test_the_openai_client_waits_for_the_end_of_a_pause(server):
    control(server, "/v1/pause")
    threading.Timer(0.3, lambda: control(server, "/v1/resume")).start()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
    assert client.completions.create(model="default", prompt="x", max_tokens=2).choices[0].text


def test_a_pause_that_keeps(server):
    expected = choice(server.post(PROMPT, prompt="def", **LONG))
    running = Background(server)
    control(server, "/v1/pause", mode="keep")
    control(server, "/v1/resume")
    assert choice(running.answer)["text"] == expected["text"]


def test_requests_are_aborted_by_id_or_all(server):
    mine, other = Background(server, request_id="mine"), Background(server)
    report = control(server, "/v1/abort_requests", req_ids=["cmpl-mine", "cmpl-unknown"])
    assert report["result"] == {"aborted": ["cmpl-mine_0"]}
    assert choice(mine.answer)["finish_reason"] == "abort"
    assert len(control(server, "/v1/abort_requests", abort_all=True)["result"]["aborted"]) == 1
    assert choice(other.answer)["finish_reason"] == "abort"
    assert server.client.post("/v1/abort_requests", json={}).status_code == 400


def test_an_aborted_stream_ends_properly(server):
    body = {"prompt": "def", "stream": True, **LONG}
    with server.client.stream("POST", PROMPT, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        control(server, "/v1/abort_requests", abort_all=True)
        rest = [line for line in lines if line]
    assert '"finish_reason":"abort"' in rest[-2] and rest[-1] == "data: [DONE]"


def test_new_weights_need_a_pause_or_a_mode(server):
    before = choice(server.post(PROMPT, prompt="def", max_tokens=8, temperature=0))["text"]
    refused = control(server, "/v1/update_weights", 500, version="v1")
    assert refused["error_message"].endswith("Pause LLM Engine first before calling "
                                             "updating weights")  # fmt: skip
    control(server, "/v1/pause")
    (report,) = control(server, "/v1/update_weights", version="v1")["result"]
    assert report["version"] == 1 and len(report["checksum"]) == 64
    assert control(server, "/v1/is_paused", method="GET")["result"]["is_paused"], "not resumed"
    control(server, "/v1/resume")
    after = choice(server.post(PROMPT, prompt="def", max_tokens=8, temperature=0))
    assert after["text"] != before
    assert after["version_spans"] == [{"start": 0, "end": 8, "version": 1}]


def test_weights_change_under_running_requests(server):
    running = Background(server)
    (report,) = control(server, "/v1/update_weights", version="v2", mode="keep")["result"]
    assert report["version"] == 2
    spans = choice(running.answer)["version_spans"]
    assert [span["version"] for span in spans] == [0, 2]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 2500)
    ended = Background(server)
    control(server, "/v1/update_weights", version="v1", mode="abort", kv="recompute")
    assert choice(ended.answer)["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, {"version": "bad"}, "model.safetensors"),
        (400, {"version": "nowhere"}, "nowhere"),
        (400, {"path": "../.."}, "not inside"),
        (400, {"version": "v3"}, "version.yaml"),
        (500, {"version": "v1", "verify_checksum": True}, "checksum"),
    ],
)
def test_what_is_wrong_with_new_weights_leaves_the_old_ones(server, status, body, message):
    fields = {"prompt": "def", "max_tokens": 8, "temperature": 0}
    before = choice(server.post(PROMPT, **fields))
    report = control(server, "/v1/update_weights", status, mode="keep", **body)
    assert message in report["error_message"]
    assert choice(server.post(PROMPT, **fields))["text"] == before["text"]


def test_sleep_and_wakeup(server):
    fields = {"prompt": "def", "max_tokens": 8, "temperature": 0}
    before = choice(server.post(PROMPT, **fields))["text"]
    control(server, "/v1/sleep?tags=weight,kv_cache")
    assert server.post(PROMPT, **fields).status_code == 503
    assert "wakeup" in control(server, "/v1/resume", 400)["error_message"]
    control(server, "/v1/wakeup?tags=weight")
    assert server.post(PROMPT, **fields).status_code == 503, "keys and values are still missing"
    control(server, "/v1/wakeup")
    assert choice(server.post(PROMPT, **fields))["text"] == before
    wrong = server.client.post("/v1/sleep?tags=nonsense")
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "tags"


def test_304_while_weights_sleep_on_a_server_that_loads_them(model_dir, tmp_path):
    with serving(model_dir, tmp_path, dynamic_load_weight=True) as server:
        assert server.client.get("/health").status_code == 200
        control(server, "/v1/sleep?tags=weight")
        for answer in (
            server.client.get("/health"),
            server.post(PROMPT, prompt="x"),
            server.post(CHAT, messages=[1]),
        ):
            assert (answer.status_code, answer.content) == (304, b"")
        control(server, "/v1/wakeup")
        assert server.client.get("/health").status_code == 200


def test_what_a_server_says_of_itself(talking):
    models = talking.client.get("/v1/models").json()
    ModelList.model_validate(models)
    (card,) = models["data"]
    assert (card["id"], card["max_model_len"]) == ("talker", 512)
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        answer = talking.client.request(method, path)
        assert (answer.status_code, answer.content) == (200, b"")
    routes = talking.client.get("/load").json()["routes"]
    assert {"path": CHAT, "methods": ["POST"], "tags": ["generation"]} in routes
    info = talking.client.get("/config-info").json()
    assert info["model"]["num_experts"] == 8 and info["settings"]["served_model_name"] == "talker"
    assert "fastdeploy:num_requests_running" in talking.client.get("/metrics").text


def test_keys_are_never_shown(model_dir, tmp_path):
    with serving(model_dir, tmp_path, api_keys=("s3cret",)) as server:
        assert server.client.get("/config-info").status_code == 401
        headers = {"authorization": "Bearer s3cret"}
        answer = server.client.get("/config-info", headers=headers)
        assert answer.status_code == 200 and "s3cret" not in answer.text


def test_a_failed_engine_is_reported(model_dir, tmp_path):
    with serving(model_dir, tmp_path) as server:
        server.worker._send(lambda engine: 1 / 0)
        until(lambda: not server.worker.healthy)
        assert server.client.get("/health").status_code == 404
        answer = server.post(PROMPT, prompt="x")
        assert answer.status_code == 500
        assert "ZeroDivisionError" in ErrorResponse.model_validate(answer.json()).error.message
        assert control(server, "/v1/pause", 500)["error_message"]


def test_routes_in_fastdeploys_local_store(talking_dir, tmp_path):
    from paddle_ernie.serve.api.settings import RouteStoreKind, RoutingReplay
    from paddle_ernie.serve.route_store import read_rollout
    from paddle_ernie.serve.routes import decode
    from tests.serve.talking import chat

    replay = RoutingReplay(RouteStoreKind.LOCAL, tmp_path / "routes")
    with serving(talking_dir, tmp_path, routing_replay=replay) as server:
        fields = {"messages": chat("hello"), "temperature": 0, "return_token_ids": True}
        answer = server.post(CHAT, **fields, user="run_epoch_1:3:0:0", return_routed_experts=True)
        ChatCompletion.model_validate(answer.json())
        tokens = answer.json()["usage"]["total_tokens"]
        stored = read_rollout(
            tmp_path / "routes", "run_epoch_1:3:0:0", tokens=tokens, num_experts=8
        )
        assert (stored == decode(choice(answer)["routed_experts"])).all()
        # An id that names no rollout is served as any other.
        assert choice(server.post(CHAT, **fields, request_id="x"))["routed_experts"] is None
