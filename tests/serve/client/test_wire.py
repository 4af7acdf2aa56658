"""FastDeploy's answers, which our server does not give, and what is sent."""

import pytest

from paddle_ernie.serve.client.types import ServerError
from paddle_ernie.serve.client.wire import error_of, pieces, reply, sampling_fields
from paddle_ernie.serve.types import FinishReason, SamplingParams

MESSAGE = {"role": "assistant", "content": "five", "completion_token_ids": [7, 8]}


def answer(**choice: object) -> dict:
    body = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop", **choice}
    return {"id": "chatcmpl-1", "choices": [body], "usage": None}


def test_a_whole_answer_of_fastdeploy() -> None:
    found = reply(
        {
            **answer(logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.5}]}),
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            },
        }
    )
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (3, 2, 1)
    choice = found.choice
    assert (choice.text, choice.token_ids, choice.logprobs) == ("five", (7, 8), (-0.5, -1.5))
    assert choice.finish_reason is FinishReason.STOP
    assert choice.version_spans == () and choice.routes is None


def test_a_completion_has_its_fields_one_level_up() -> None:
    found = reply(
        {
            "id": "cmpl-1",
            "choices": [
                {
                    "index": 0,
                    "text": "six",
                    "prompt_token_ids": [1, 2],
                    "completion_token_ids": [6],
                    "logprobs": {"tokens": ["six"], "token_logprobs": [-0.25]},
                    "finish_reason": "length",
                }
            ],
        }
    )
    assert found.prompt_token_ids == (1, 2) and found.choice.text == "six"
    assert found.choice.token_ids == (6,) and found.choice.logprobs == (-0.25,)


def test_reasons_that_we_do_not_know_stay_as_they_are() -> None:
    assert reply(answer(finish_reason="recover_stop")).choice.finish_reason == "recover_stop"


def test_no_choices_is_an_error() -> None:
    with pytest.raises(ServerError, match=r"without choices.*LLM Engine is paused"):
        reply({"error": {"message": "LLM Engine is paused", "type": "internal_error"}})


def test_a_chunk_may_hold_several_pieces_of_a_choice() -> None:
    chunk = {
        "id": "chatcmpl-1",
        "choices": [
            {"index": 0, "delta": {"content": "a", "completion_token_ids": [1]}},
            {"index": 0, "delta": {"content": "b", "completion_token_ids": [2]}},
            {"index": 1, "text": "c", "completion_token_ids": [3], "finish_reason": "abort"},
        ],
    }
    found = pieces(chunk)
    assert [(p.index, p.text, p.token_ids) for p in found] == [
        (0, "a", (1,)), (0, "b", (2,)), (1, "c", (3,)),
    ]  # fmt: skip
    assert found[2].finish_reason is FinishReason.ABORT
    assert pieces({"id": "chatcmpl-1", "choices": [], "usage": {}}) == []


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"error": {"message": "m", "type": "t", "code": "invalid"}}, "m (t)", "invalid"),
        ({"detail": "Too many requests"}, "Too many requests", None),
        ({"status": "error", "error_message": "no such version"}, "no such version", None),
        ({"error": "Worker Service Not Healthy"}, "Worker Service Not Healthy", None),
        ("<html>", "<html>", None),
        ("", "", None),
    ],
)
def test_every_kind_of_error_body(body: object, message: str, code: str | None) -> None:
    error = error_of(503, body, "POST /x")
    assert message in str(error) and "HTTP 503" in str(error)
    assert (error.status, error.code) == (503, code)


def test_only_what_differs_is_sent_and_what_servers_would_choose() -> None:
    assert sampling_fields(SamplingParams()) == {"temperature": 1.0, "top_p": 1.0, "seed": 0}
    fields = sampling_fields(
        SamplingParams(
            max_tokens=5, temperature=0.5, seed=9, stop=("x",), stop_token_ids=frozenset({4, 2}),
            logit_bias={3: -1.0}, bad_words_token_ids=((8,), (9,)), logprobs=0,
            temp_scaled_logprobs=True, top_k=7,
        )
    )  # fmt: skip
    assert fields == {
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 9,
        "max_tokens": 5,
        "top_k": 7,
        "stop": ["x"],
        "stop_token_ids": [2, 4],
        "logit_bias": {"3": -1.0},
        "bad_words_token_ids": [8, 9],
        "logprobs": True,
        "top_logprobs": 0,
        "temp_scaled_logprobs": True,
    }
