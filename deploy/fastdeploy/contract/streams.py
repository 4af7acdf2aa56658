"""Checks of streams: framing, chunks, usage, errors; the text is that of a whole answer."""

from contract.server import CHAT, COMPLETIONS, Check, Json, Server, equal, has, ids_of, true


def chat_stream(server: Server) -> str:
    """First chunk, growth, reason, and the same text and ids as without a stream."""
    whole = server.chat(return_token_ids=True)["choices"][0]
    chunks = server.stream(CHAT, server.chat_body(return_token_ids=True))
    for chunk in chunks:
        has(chunk, ("id", "object", "created", "model", "choices"), "a chunk")
        equal(chunk["object"], "chat.completion.chunk", "object")
    equal(len({chunk["id"] for chunk in chunks}), 1, "different ids of chunks")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    equal(choices[0]["delta"].get("role"), "assistant", "role in the first chunk")
    true("prompt_token_ids" in choices[0]["delta"], "no prompt_token_ids in the first chunk")
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    equal(text, whole["message"]["content"], "text of the stream")
    equal(_stream_ids(choices), ids_of(whole), "token ids of the stream")
    equal(_reasons(choices), [whole["finish_reason"]], "finish reasons of the stream")
    return f"{len(chunks)} chunks"


def completion_stream(server: Server) -> None:
    """The same of a completion."""
    whole = server.completion(return_token_ids=True)["choices"][0]
    chunks = server.stream(COMPLETIONS, server.completion_body(return_token_ids=True))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    equal("".join(choice.get("text") or "" for choice in choices), whole["text"], "text")
    ids = [token for choice in choices for token in choice.get("completion_token_ids") or []]
    equal(ids, ids_of(whole), "token ids of the stream")
    equal(_reasons(choices), [whole["finish_reason"]], "finish reasons of the stream")


def usage(server: Server) -> None:
    """include_usage: one more chunk, with no choices."""
    body = server.chat_body(stream_options={"include_usage": True}, ignore_eos=True)
    last = server.stream(CHAT, body)[-1]
    equal(last["choices"], [], "choices of the last chunk")
    has(last["usage"], ("prompt_tokens", "completion_tokens", "total_tokens"), "usage")


def several_tokens(server: Server) -> None:
    """max_streaming_response_tokens: the same tokens, however they are grouped."""
    body = server.chat_body(return_token_ids=True, ignore_eos=True)
    one = server.stream(CHAT, body)
    four = server.stream(CHAT, {**body, "max_streaming_response_tokens": 4})
    flat = [[choice for chunk in chunks for choice in chunk["choices"]] for chunks in (one, four)]
    equal(_stream_ids(flat[1]), _stream_ids(flat[0]), "token ids")


def abort(server: Server) -> str:
    """/v1/abort_requests ends a stream with the reason abort."""
    body = server.chat_body(max_tokens=4096, ignore_eos=True)
    limit = server.http.get("/v1/models").json()["data"][0]["max_model_len"] or 4096
    body["max_tokens"] = max(16, min(4096, limit // 2))
    reasons, seen = [], 0
    with server.events(CHAT, body) as events:
        for chunk in events:
            seen += 1
            if seen == 1:
                server.ok(server.post("/v1/abort_requests", {"req_ids": [chunk["id"]]}))
            reasons += _reasons(chunk["choices"])
    equal(reasons, ["abort"], f"finish reasons after {seen} chunks")
    return f"after {seen} chunks"


def abort_all(server: Server) -> None:
    """With nothing to abort it is a success as well."""
    server.ok(server.post("/v1/abort_requests", {"abort_all": True}))


def _stream_ids(choices: list[Json]) -> list[int]:
    return [
        token for choice in choices for token in choice["delta"].get("completion_token_ids") or []
    ]


def _reasons(choices: list[Json]) -> list[str]:
    return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


CHECKS: tuple[Check, ...] = (
    chat_stream, completion_stream, usage, several_tokens, abort, abort_all,
)  # fmt: skip
