"""Statuses and bodies of errors."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from paddle_ernie.serve.api import errors
from paddle_ernie.serve.api.errors import ApiError, ErrorCode
from paddle_ernie.serve.api.protocol import CompletionRequest


@pytest.fixture
def call():
    """call(what to raise): the response of a handler that raises it."""
    app = FastAPI()
    errors.install(app)
    raised: list[Exception] = []

    @app.post("/")
    async def handler(request: CompletionRequest) -> None:
        raise raised[0]

    def run(error=None, body=None, method="POST", path="/"):
        async def main():
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, json=body or {"prompt": "x"})

        raised[:] = [error]
        return asyncio.run(main())

    return run


def test_an_error_of_the_caller(call):
    answer = call(ApiError("no", param="model", code=ErrorCode.MODEL_NOT_SUPPORT))
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_support",
        }
    }
    assert "retry-after" not in answer.headers


def test_what_may_be_sent_again_says_so(call):
    for error, status in ((errors.paused_error(), 503), (errors.full_error("full"), 429)):
        answer = call(error)
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")


def test_304_has_no_body(call):
    answer = call(errors.asleep_error())
    assert (answer.status_code, answer.content) == (304, b"")


def test_what_nobody_foresaw_is_500_with_its_class(call):
    answer = call(ZeroDivisionError("ouch"))
    assert answer.status_code == 500
    assert answer.json()["error"] == {
        "message": "ZeroDivisionError: ouch",
        "type": "internal_error",
        "param": None,
        "code": "internal_error",
    }


def test_paths_and_methods_that_do_not_exist(call):
    assert call(path="/nowhere").status_code == 404
    answer = call(method="DELETE")
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": {"a": 1}}, "prompt", "valid"),
        ({"prompt": "x", "stop": [1]}, "stop", "valid"),
        ({"prompt": "x", "stream": True, "stream_options": {"include_usage": "often"}},
         "include_usage", "boolean"),
        ({"prompt": "x", "min_tokens": 3, "max_tokens": 2}, None, "min_tokens is 3"),
    ],
)  # fmt: skip
def test_the_field_is_named(call, body, param, message):
    answer = call(body=body)
    assert answer.status_code == 400
    found = answer.json()["error"]
    assert (found["param"], found["code"]) == (param, "invalid_value")
    assert message in found["message"]


def test_messages_are_cut():
    body = errors.error_body("x" * 10**6, errors.ErrorType.INTERNAL)
    assert len(body["error"]["message"]) < 2100
