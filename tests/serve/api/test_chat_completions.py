"""Chats over a real socket: FastDeploy's JSON by key, and the `openai` client on top of it."""

import asyncio
import base64
import json

import numpy as np
import openai
import pytest

from paddle_ernie.serve.api.responses import ChatChunk, ChatCompletion, ErrorResponse
from tests.serve.talking import CALL, REPLIES, TOOLS, asks_for_tools, chat

PATH = "/v1/chat/completions"
ARGUMENTS = '{"a": 1, "b": "}é"}'


def ask(server, word="hello", **fields) -> dict:
    """A whole answer, checked against the protocol."""
    fields = {"messages": chat(word), "temperature": 0, **fields}
    if asks_for_tools(word):
        fields.setdefault("tools", TOOLS)
    answer = server.post(PATH, **fields)
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json())
    return answer.json()


def stream(server, word="hello", **fields) -> list[dict]:
    """The chunks of a stream, checked against the protocol."""
    fields = {"messages": chat(word), "temperature": 0, **fields, "stream": True}
    if asks_for_tools(word):
        fields.setdefault("tools", TOOLS)
    answer = server.post(PATH, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        ChatChunk.model_validate(chunk)
    return chunks


def joined(chunks: list[dict], index: int = 0) -> dict:
    """The message that a stream adds up to."""
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return {
        "content": "".join(d.get("content") or "" for d in deltas),
        "reasoning": "".join(d.get("reasoning_content") or "" for d in deltas),
        "calls": [call for d in deltas for call in d.get("tool_calls") or ()],
        "ids": [i for d in deltas for i in d.get("completion_token_ids") or ()],
        "text": "".join(d.get("completion_tokens") or "" for d in deltas),
    }


def error(server, status=400, **fields) -> dict:
    answer = server.post(PATH, **fields)
    assert answer.status_code == status, answer.text
    return ErrorResponse.model_validate(answer.json()).error.model_dump()


def test_every_key_is_there_and_null_where_there_is_nothing(talking):
    answer = ask(talking, "hello")
    (choice,) = answer["choices"]
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["model"] == "default"
    assert choice["message"] == {
        "role": "assistant",
        "content": REPLIES["hello"],
        "multimodal_content": None,
        "reasoning_content": None,
        "audio_content": None,
        "tool_calls": None,
        "prompt_token_ids": None,
        "completion_token_ids": None,
        "prompt_tokens": None,
        "completion_tokens": None,
    }
    del choice["message"]
    assert choice == {
        "index": 0,
        "logprobs": None,
        "draft_logprobs": None,
        "prompt_logprobs": None,
        "finish_reason": "stop",
        "speculate_metrics": None,
        "version_spans": [{"start": 0, "end": answer["usage"]["completion_tokens"], "version": 0}],
        "routed_experts": None,
    }


def test_the_first_chunk_and_what_later_ones_leave_out(talking):
    fields = {"messages": chat("hello"), "temperature": 0, "stream": True, "return_token_ids": True}
    text = talking.post(PATH, **fields).text
    assert text.split("\n\n")[0].endswith(" "), "FastDeploy's first event ends with a space"
    first, *others = stream(talking, **fields)
    prompt = "<|turn_start|>user\nhello<|turn_end|>\n<|turn_start|>assistant\n"
    ids = talking.worker.tokenizer.encode(prompt, allow_special=True)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {
                "role": "assistant",
                "content": "",
                "reasoning_content": "",
                "tool_calls": None,
                "prompt_token_ids": ids,
                "prompt_tokens": prompt,
                "completion_token_ids": None,
            },
        }
    ]
    for chunk in others:
        (choice,) = chunk["choices"]
        assert "usage" not in chunk and "role" not in choice["delta"]
        assert ("finish_reason" in choice) == (chunk is others[-1])
    assert joined(others)["text"] == REPLIES["hello"]
    assert (
        joined(others)["ids"]
        == ask(talking, **{**fields, "stream": False})["choices"][0]["message"][
            "completion_token_ids"
        ]
    )


@pytest.mark.parametrize("word", REPLIES)
def test_a_stream_adds_up_to_the_whole_answer(talking, word):
    message = ask(talking, word)["choices"][0]["message"]
    chunks = stream(talking, word)
    total = joined(chunks)
    assert total["content"] == (message["content"] or "")
    assert total["reasoning"] == (message["reasoning_content"] or "")
    calls = [call["function"] for call in message["tool_calls"] or ()]
    assert [call["function"] for call in total["calls"]] == calls
    assert [call["index"] for call in total["calls"]] == list(range(len(calls)))
    assert chunks[-1]["choices"][0]["finish_reason"] == ("tool_calls" if calls else "stop")


def test_reasoning_and_tool_calls_are_taken_out(talking):
    answer = ask(talking, "add", return_token_ids=True)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me.", "a sum")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert choice["finish_reason"] == "tool_calls"
    assert message["completion_tokens"] == REPLIES["add"]
    ids, tokenizer = message["completion_token_ids"], talking.worker.tokenizer
    thought = ids.index(tokenizer.token_id("</think>")) + 1
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought


def test_calls_are_text_without_tools(talking):
    message = ask(talking, "twice", tools=None)["choices"][0]["message"]
    assert message["tool_calls"] is None
    (prompt_with, prompt_without) = (
        ask(talking, "twice", return_token_ids=True, max_tokens=1, **fields)["choices"][0][
            "message"
        ]["prompt_tokens"]
        for fields in ({}, {"tool_choice": "none"})
    )
    assert '"name": "add"' in prompt_with and "add" not in prompt_without


def test_a_conversation_with_a_call_is_rendered_as_it_was_generated(talking):
    call = ask(talking, "twice")["choices"][0]["message"]["tool_calls"][0]
    history = [
        *chat("twice"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": call["id"]},
    ]
    answer = ask(talking, messages=history, max_tokens=1, return_token_ids=True)
    assert f"assistant\n{CALL}<|turn_end|>" in answer["choices"][0]["message"]["prompt_tokens"]


def test_usage_in_streams(talking):
    usage = ask(talking)["usage"]
    usage.pop("prompt_tokens_details")
    chunks = stream(talking, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    last = chunks[-1]["usage"]
    assert last.pop("prompt_tokens_details")["image_tokens"] == 0
    assert last == usage
    assert not any("usage" in chunk for chunk in chunks[:-1])
    options = {"include_usage": False, "continuous_usage_stats": True}
    counts = [c["usage"]["completion_tokens"] for c in stream(talking, stream_options=options)]
    assert counts[0] == 0 and counts[-1] == usage["completion_tokens"]
    assert counts == sorted(counts)


def test_n_choices_with_seeds_derived_from_one(talking):
    fields = {"n": 3, "temperature": 3.0, "seed": 5, "max_tokens": 12, "return_token_ids": True}
    first, again = (ask(talking, **fields) for _ in range(2))
    ids = [choice["message"]["completion_token_ids"] for choice in first["choices"]]
    assert ids == [choice["message"]["completion_token_ids"] for choice in again["choices"]]
    assert len({tuple(own) for own in ids}) == 3
    alone = ask(talking, **{**fields, "n": 1})["choices"][0]["message"]
    assert alone["completion_token_ids"] == ids[0]
    chunks = stream(talking, **fields)
    assert [joined(chunks, index)["ids"] for index in range(3)] == ids
    assert first["usage"]["completion_tokens"] == sum(map(len, ids))


def test_without_a_seed_each_request_draws_anew(talking):
    texts = {
        ask(talking, temperature=5.0, max_tokens=8)["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(texts) > 1


def test_logprobs_need_both_fields(talking):
    assert ask(talking, logprobs=True)["choices"][0]["logprobs"] is None
    fields = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    (choice,) = ask(talking, **fields)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == len(choice["message"]["completion_token_ids"])
    for entry in content:
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"], "greedy"
        assert len(entry["top_logprobs"]) == 2
    assert b"".join(bytes(e["bytes"]) for e in content[:-1]).decode() == REPLIES["hello"]
    assert content[-1]["token"] == "<|turn_end|>"
    (bare,) = ask(talking, logprobs=True, top_logprobs=0)["choices"]
    assert [e["logprob"] for e in bare["logprobs"]["content"]] == [e["logprob"] for e in content]
    streamed = [c["choices"][0].get("logprobs") for c in stream(talking, **fields)]
    entries = [entry for found in streamed if found for entry in found["content"]]
    assert entries == content
    coded = ask(talking, **fields, include_logprobs_decode_token=False)["choices"][0]
    ids = choice["message"]["completion_token_ids"]
    assert [e["token"] for e in coded["logprobs"]["content"]] == [f"token_id:{i}" for i in ids]


def test_logprobs_after_the_temperature(talking):
    fields = {"temperature": 2.0, "seed": 1, "max_tokens": 4, "logprobs": True, "top_logprobs": 0}
    raw, scaled = (
        [
            entry["logprob"]
            for entry in ask(talking, **fields, temp_scaled_logprobs=wanted)["choices"][0][
                "logprobs"
            ]["content"]
        ]
        for wanted in (False, True)
    )
    assert all(a != b for a, b in zip(raw, scaled, strict=True))


def test_prompt_logprobs(talking):
    (choice,) = ask(talking, prompt_logprobs=1, return_token_ids=True, max_tokens=1)["choices"]
    ids, found = choice["message"]["prompt_token_ids"], choice["prompt_logprobs"]
    assert found[0] is None and len(found) == len(ids)
    for token, candidates in zip(ids[1:], found[1:], strict=True):
        assert candidates[str(token)]["decoded_token"]
        assert 1 in [entry["rank"] for entry in candidates.values()]
    first = stream(talking, prompt_logprobs=1, max_tokens=3)
    carrying = [chunk for chunk in first if "prompt_logprobs" in chunk["choices"][0]]
    assert len(carrying) == 1
    assert carrying[0]["choices"][0]["prompt_logprobs"] == found


def test_prompts_as_ids(talking):
    ids = ask(talking, return_token_ids=True)["choices"][0]["message"]["prompt_token_ids"]
    for fields in ({"messages": [], "prompt_token_ids": ids}, {"messages": ids}):
        answer = ask(talking, **fields)
        assert answer["choices"][0]["message"]["content"] == REPLIES["hello"]
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_going_on_from_tokens_of_an_earlier_reply(talking):
    whole = ask(talking, return_token_ids=True)["choices"][0]["message"]["completion_token_ids"]
    rest = ask(talking, completion_token_ids=whole[:3], return_token_ids=True)
    assert rest["choices"][0]["message"]["completion_token_ids"] == whole[3:]


def test_a_prompt_without_template(talking):
    answer = ask(talking, disable_chat_template=True, return_token_ids=True, max_tokens=1)
    message = answer["choices"][0]["message"]
    assert message["prompt_tokens"] == "hello"
    assert talking.worker.tokenizer.decode(message["prompt_token_ids"]) == "hello"


def test_stop_and_lengths(talking):
    stopped = ask(talking, stop=[" caf"])["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("Hello, naïve 🙂", "stop")
    kept = ask(talking, stop=" caf", include_stop_str_in_output=True)["choices"][0]
    assert kept["message"]["content"] == "Hello, naïve 🙂 caf"
    short = ask(talking, max_tokens=9, max_completion_tokens=2)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 2
    long = ask(talking, min_tokens=40, max_tokens=40)
    assert long["usage"]["completion_tokens"] == 40
    banned = ask(talking, bad_words=["Hello"])["choices"][0]["message"]["content"]
    assert not banned.startswith("Hello")


def test_ids_follow_fastdeploys_rule(talking):
    assert ask(talking, request_id="mine", max_tokens=1)["id"] == "chatcmpl-mine"
    assert ask(talking, request_id="chatcmpl-mine", max_tokens=1)["id"] == "chatcmpl-mine"
    named = ask(talking, user="run:7:0:1", max_tokens=1)["id"]
    assert named.startswith("chatcmpl-run:7:0:1-")
    assert named.count("-") == 6, "a uuid4 behind it"
    assert ask(talking, max_tokens=1)["id"].count("-") == 5


def test_routes_come_if_asked_for(talking):
    fields = {"return_routed_experts": True, "return_token_ids": True, "max_tokens": 3}
    answer = ask(talking, **fields)
    (choice,) = answer["choices"]
    routes = choice["routed_experts"]
    usage = answer["usage"]
    rows = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert (routes["shape"], routes["dtype"]) == ([rows, 1, 2], "uint8")
    ids = np.frombuffer(base64.b64decode(routes["data"]), np.uint8).reshape(routes["shape"])
    assert ids.max() < 8
    chunks = stream(talking, **fields)
    assert [c["choices"][0].get("routed_experts") for c in chunks][-1] == routes
    packed = ask(talking, **fields, pack_routed_experts=True)["choices"][0]["routed_experts"]
    assert packed["bits"] == 4 and len(packed["data"]) < len(routes["data"])


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, None, "invalid_value"),
        ({"messages": [{"content": "x"}]}, "role", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content",
         "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"top_p": 1.5}, "top_p", "invalid_value"),
        ({"seed": 922337203685477581}, "seed", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, None, "invalid_value"),
        ({"top_logprobs": 2}, None, "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": -1}, "logprobs", "invalid_value"),
        ({"min_tokens": 5, "max_tokens": 4}, None, "invalid_value"),
        ({"guided_json": {}}, None, None),
        ({"guided_regex": "a*"}, None, "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "type", "invalid_value"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "invalid_value"),
        ({"model": "another"}, "model", "model_not_support"),
        ({"prompt_token_ids": [99999]}, "prompt", "invalid_value"),
        ({"prompt_token_ids": [50] * 600}, "prompt", "context_length_exceeded"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stream": True, "prompt_token_ids": [50] * 600}, "prompt", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_faults_of_requests(talking, fields, param, code):
    body = {"messages": chat("hello"), "max_tokens": 1, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    if code is None:  # an empty constraint is none
        assert talking.post(PATH, **body).status_code == 200
        return
    found = error(talking, **body)
    assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", param, code)
    assert found["message"]


def test_a_body_that_is_no_json(talking):
    answer = talking.client.post(PATH, content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    ErrorResponse.model_validate(answer.json())


def test_a_running_request_id_is_not_given_twice(talking):
    fields = {"request_id": "same", "messages": chat("hello"), "ignore_eos": True}
    body = {**fields, "stream": True, "max_tokens": 480, "min_tokens": 480, "n": 8}
    body |= {"logprobs": True, "top_logprobs": 20}  # long enough to be found running
    with talking.client.stream("POST", PATH, json=body) as running:
        lines = running.iter_lines()
        next(lines)
        assert error(talking, **fields)["param"] == "request_id"
    for _ in range(1000):  # once the client has left, the name is free
        if talking.post(PATH, **{**fields, "max_tokens": 1}).status_code == 200:
            break
    else:
        raise AssertionError("the request id stays taken")


def openai_client(server, kind=openai.OpenAI):
    return kind(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_openai_client(talking):
    client = openai_client(talking)
    reply = client.chat.completions.create(model="talker", messages=chat("hello"), temperature=0)
    assert reply.choices[0].message.content == REPLIES["hello"]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    assert [model.id for model in client.models.list()] == ["talker"]
    assert client.models.list().data[0].owned_by == "FastDeploy"


def test_the_openai_client_streams_and_counts(talking):
    chunks = list(
        openai_client(talking).chat.completions.create(
            model="talker", messages=chat("think"), temperature=0, stream=True,
            stream_options={"include_usage": True}, extra_body={"return_token_ids": True},
        )
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "It is 5."
    thoughts = "".join(getattr(c.delta, "reasoning_content", None) or "" for c in choices)
    assert thoughts == "2 + 3 is 5"
    ids = [i for c in choices for i in c.delta.completion_token_ids or ()]
    assert chunks[-1].usage.completion_tokens == len(ids)


def test_the_openai_client_calls_tools(talking):
    client = openai_client(talking).chat.completions
    fields = {"model": "talker", "messages": chat("twice"), "tools": TOOLS, "temperature": 0}
    calls = client.create(**fields).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"a": 1, "b": "}é"}] * 2
    # Its helper that puts streams together knows how deltas of calls must look.
    with client.stream(**fields) as events:
        for _ in events:
            pass
        final = events.get_final_completion().choices[0]
    assert [call.function.arguments for call in final.message.tool_calls] == [ARGUMENTS] * 2
    assert final.finish_reason == "tool_calls"


def test_the_openai_client_reads_logprobs_and_choices(talking):
    reply = openai_client(talking).chat.completions.create(
        model="talker", messages=chat("hello"), temperature=0, logprobs=True, top_logprobs=3, n=2
    )
    assert len(reply.choices) == 2
    for choice in reply.choices:
        assert choice.logprobs.content[0].token == choice.logprobs.content[0].top_logprobs[0].token
        assert len(choice.logprobs.content[0].top_logprobs) == 3


def test_the_openai_client_raises_what_it_knows(talking):
    create = openai_client(talking).chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="other", messages=chat("hello"))
    assert caught.value.code == "model_not_support"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="talker", messages=chat("hello " * 600))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        openai_client(talking).embeddings.create(model="talker", input="x")


def test_many_asynchronous_clients(talking):
    async def main():
        async with openai_client(talking, openai.AsyncOpenAI) as client:

            async def one(word: str) -> str:
                events = await client.chat.completions.create(
                    model="talker", messages=chat(word), temperature=0, stream=True
                )
                return "".join([e.choices[0].delta.content or "" async for e in events])

            words = ["hello", "think"] * 10
            return await asyncio.gather(*map(one, words))

    assert asyncio.run(main()) == [REPLIES["hello"], "It is 5."] * 10
