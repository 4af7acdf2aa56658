"""Completions over a real socket: prompts in every form, echo, log-probabilities, streams."""

import json

import openai
import pytest

from paddle_ernie.serve.api.responses import Completion, ErrorResponse

PATH = "/v1/completions"


def ask(server, prompt="def main", **fields) -> dict:
    answer = server.post(PATH, **{"prompt": prompt, "temperature": 0, "max_tokens": 6, **fields})
    assert answer.status_code == 200, answer.text
    Completion.model_validate(answer.json())
    return answer.json()


def stream(server, prompt="def main", **fields) -> list[dict]:
    fields = {"temperature": 0, "max_tokens": 6, **fields, "stream": True}
    answer = server.post(PATH, prompt=prompt, **fields)
    *events, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        Completion.model_validate(chunk)
    return chunks


def texts(answer: dict) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_every_key_is_there(talking):
    answer = ask(talking)
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert choice.pop("text")
    assert choice == {
        "index": 0,
        "prompt_token_ids": None,
        "completion_token_ids": None,
        "prompt_tokens": None,
        "completion_tokens": None,
        "arrival_time": None,
        "logprobs": None,
        "draft_logprobs": None,
        "prompt_logprobs": None,
        "reasoning_content": None,
        "finish_reason": "length",
        "tool_calls": None,
        "speculate_metrics": None,
        "version_spans": [{"start": 0, "end": 6, "version": 0}],
        "routed_experts": None,
    }


def test_prompts_in_every_form_give_the_same(talking):
    one, two = (talking.worker.tokenizer.encode(text) for text in ("def main", "hello"))
    expected = [*texts(ask(talking)), *texts(ask(talking, "hello"))]
    assert texts(ask(talking, ["def main", "hello"])) == expected
    assert texts(ask(talking, [one, two])) == expected
    assert texts(ask(talking, one)) == expected[:1]
    assert texts(ask(talking, "", prompt_token_ids=one)) == expected[:1]
    assert texts(ask(talking, "not read", prompt_token_ids=[one, two])) == expected


def test_choices_of_several_prompts_are_numbered_through(talking):
    fields = {"n": 2, "temperature": 4.0, "seed": 9, "return_token_ids": True, "echo": True}
    answer = ask(talking, ["hello", "def main"], **fields)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    prompts = [choice["prompt_tokens"] for choice in answer["choices"]]
    assert prompts == ["hello", "hello", "def main", "def main"]
    assert all(
        text == prompt + choice["completion_tokens"]
        for text, prompt, choice in zip(texts(answer), prompts, answer["choices"], strict=True)
    )
    sizes = [len(choice["prompt_token_ids"]) for choice in answer["choices"]]
    assert answer["usage"]["prompt_tokens"] == sizes[0] + sizes[2], "each prompt counts once"
    assert answer["usage"]["completion_tokens"] == 24
    chunks = stream(talking, ["hello", "def main"], **fields)
    for index in range(4):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert own[0]["prompt_token_ids"] and own[0]["text"] == ""
        assert "".join(c["text"] for c in own) == texts(answer)[index]
        assert own[-1]["finish_reason"] == "length"


def test_logprobs(talking):
    (choice,) = ask(talking, logprobs=2, return_token_ids=True)["choices"]
    found = choice["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == 6
    assert [len(top) for top in found["top_logprobs"]] == [2] * 6
    assert found["text_offset"] is None
    for logprob, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert logprob == max(top.values()), "greedy"
    (bare,) = ask(talking, logprobs=0)["choices"]
    assert bare["logprobs"]["token_logprobs"] == found["token_logprobs"]
    assert bare["logprobs"]["top_logprobs"] == [{}] * 6
    chunks = stream(talking, logprobs=2)
    assert [token for c in chunks for token in c["choices"][0]["logprobs"]["tokens"]] == found[
        "tokens"
    ]


def test_streams_without_ids_have_no_empty_chunk_and_may_count(talking):
    chunks = stream(talking, stream_options={"include_usage": True})
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == texts(ask(talking))[0]
    assert chunks[-1]["usage"]["completion_tokens"] == 6 and chunks[-1]["choices"] == []
    assert not any("prompt_token_ids" in c["choices"][0] for c in chunks[:-1])


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": ["x", ""]},
        {"prompt": [True]},
        {"prompt": [-1]},
        {"prompt": "x", "best_of": 3},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "logprobs": -2},
        {"prompt": [10**6]},
        {"prompt": "x", "logit_bias": {"7": 101}},
        {"prompt": "x", "logit_bias": {"many": 1}},
        {"prompt": {"text": "x"}},
    ],
)
def test_faults(talking, fields):
    answer = talking.post(PATH, **fields)
    assert answer.status_code == 400, answer.text
    ErrorResponse.model_validate(answer.json())


def test_a_bias_decides(talking):
    token = talking.worker.tokenizer.encode("x")[0]
    fields = {"logit_bias": {str(token): 100}, "max_tokens": 3}
    assert texts(ask(talking, **fields)) == ["xxx"]


def test_the_openai_client(talking):
    client = openai.OpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0)
    fields = {"model": "default", "prompt": "def main", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**fields, logprobs=1)
    assert whole.choices[0].text == texts(ask(talking))[0]
    assert len(whole.choices[0].logprobs.tokens) == 6
    pieces = client.completions.create(**fields, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
