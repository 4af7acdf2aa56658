"""Checks of what is not generation: health, models, metrics, errors, keys, overload."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from contract.server import CHAT, Check, Server, Skip, equal, error_of, has, true

MODEL_KEYS = ("id", "object", "created", "owned_by", "root", "parent", "max_model_len",
              "permission")  # fmt: skip


def health(server: Server) -> None:
    """/health."""
    equal(server.http.get("/health").status_code, 200, "HTTP status of /health")


def ping(server: Server) -> None:
    """/ping, by both methods."""
    equal(server.http.get("/ping").status_code, 200, "HTTP status of GET /ping")
    equal(server.http.post("/ping").status_code, 200, "HTTP status of POST /ping")


def models(server: Server) -> str:
    """/v1/models."""
    body = server.ok(server.http.get("/v1/models"))
    equal(body.get("object"), "list", "object")
    card = body["data"][0]
    has(card, MODEL_KEYS, "data[0]")
    equal(card["owned_by"], "FastDeploy", "owned_by")
    return f"{card['id']}, {card['max_model_len']} tokens"


def metrics(server: Server) -> None:
    """Prometheus text with FastDeploy's names."""
    response = httpx.get(
        server.options.metrics_url,
        headers=dict(server.http.headers),
        timeout=server.options.timeout_s,
    )
    equal(response.status_code, 200, f"HTTP status of {server.options.metrics_url}")
    for name in ("num_requests_running", "num_requests_waiting"):
        true(f"fastdeploy:{name}" in response.text, f"no metric fastdeploy:{name}")


def missing_messages(server: Server) -> None:
    """A chat without messages."""
    response = server.post(CHAT, server.chat_body(messages=None))
    error = error_of(response)
    equal(response.status_code, 400, "HTTP status")
    equal(error["code"], "missing_required_parameter", "code")
    equal(error["param"], "messages", "param")
    equal(error["type"], "invalid_request_error", "type")


def bad_value(server: Server) -> None:
    """A negative temperature."""
    response = server.post(CHAT, server.chat_body(temperature=-1))
    error = error_of(response)
    equal(response.status_code, 400, "HTTP status")
    equal((error["code"], error["param"]), ("invalid_value", "temperature"), "code and param")


def too_long(server: Server) -> str:
    """A prompt that no sequence of the server holds."""
    limit = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    if not limit:
        raise Skip("/v1/models does not tell max_model_len")
    response = server.post(CHAT, server.chat_body(messages=[], prompt_token_ids=[5] * (limit + 1)))
    error = error_of(response)
    if server.options.ours:
        equal(response.status_code, 400, "HTTP status")
        equal(error["code"], "context_length_exceeded", "code")
    return f"HTTP {response.status_code}, {error['code']}"


def no_json(server: Server) -> None:
    """A body that is no JSON."""
    response = server.http.post(
        CHAT, content=b'{"messages": [', headers={"content-type": "application/json"}
    )
    error_of(response)
    true(response.status_code < 500, f"HTTP {response.status_code}, expected 4xx")


def unknown_model(server: Server) -> None:
    """A model of another name."""
    response = server.post(CHAT, server.chat_body(model="no-such-model"))
    if response.status_code == 200:
        raise Skip("started without --served-model-name: names are not checked")
    equal(error_of(response)["code"], "model_not_support", "code")
    server.chat(model="default")


def api_key(server: Server) -> None:
    """No key, and a wrong one."""
    if server.options.api_key is None:
        raise Skip("no --api-key given")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = httpx.post(
            server.options.url + CHAT, json=server.chat_body(), headers=headers,
            timeout=server.options.timeout_s,
        )  # fmt: skip
        equal(response.status_code, 401, f"HTTP status with headers {headers}")


def overload(server: Server) -> str:
    """More requests than --max-concurrency: 429, and the others are answered."""
    count = server.options.overload
    if not count:
        raise Skip("no --overload given")
    body = server.chat_body(max_tokens=64, ignore_eos=True)
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: server.post(CHAT, body), range(count)))
    refused = [answer for answer in answers if answer.status_code == 429]
    true(bool(refused), f"{count} requests at once and none was refused")
    true(
        "Too many requests" in str(refused[0].json().get("detail")),
        "429 without FastDeploy's detail",
    )
    served = sum(answer.status_code == 200 for answer in answers)
    equal(served + len(refused), count, "answers that are 200 or 429")
    return f"{served} served, {len(refused)} refused"


CHECKS: tuple[Check, ...] = (
    health, ping, models, metrics, missing_messages, bad_value, too_long, no_json, unknown_model,
    api_key, overload,
)  # fmt: skip
