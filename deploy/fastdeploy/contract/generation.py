"""Checks of chats and completions: fields, token ids, log-probabilities, repeatability."""

import math

from contract.server import (
    CHAT,
    COMPLETIONS,
    NEW,
    Check,
    Json,
    Server,
    Skip,
    equal,
    has,
    ids_of,
    true,
)

CHOICE_KEYS = ("index", "logprobs", "finish_reason")
MESSAGE_KEYS = ("role", "content", "reasoning_content", "tool_calls", "prompt_token_ids",
                "completion_token_ids")  # fmt: skip
USAGE_KEYS = ("prompt_tokens", "total_tokens", "completion_tokens")
PROMPT_IDS = [11, 12, 13, 14, 15]


def chat(server: Server) -> str:
    """Fields of a whole answer; null where there is nothing."""
    body = server.chat()
    has(body, ("id", "object", "created", "model", "choices", "usage"), "the answer")
    equal(body["object"], "chat.completion", "object")
    true(body["id"].startswith("chatcmpl-"), f"id {body['id']!r} does not begin with chatcmpl-")
    choice = body["choices"][0]
    has(choice, (*CHOICE_KEYS, "message"), "choices[0]")
    has(choice["message"], MESSAGE_KEYS, "message")
    equal(choice["message"]["role"], "assistant", "role")
    _usage(body["usage"])
    return repr((choice["message"]["content"] or "")[:24])


def completion(server: Server) -> None:
    """The same of a completion."""
    body = server.completion()
    equal(body["object"], "text_completion", "object")
    true(body["id"].startswith("cmpl-"), f"id {body['id']!r} does not begin with cmpl-")
    has(body["choices"][0], (*CHOICE_KEYS, "text"), "choices[0]")
    _usage(body["usage"])


def _usage(usage: Json) -> None:
    has(usage, USAGE_KEYS, "usage")
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    equal(usage["total_tokens"], total, "total_tokens")


def several_prompts(server: Server) -> None:
    """A list of prompts: a choice each, in order."""
    choices = server.completion(prompt=["one", "two", "three"])["choices"]
    equal(sorted(choice["index"] for choice in choices), [0, 1, 2], "indices")


def several_choices(server: Server) -> None:
    """n = 2."""
    choices = server.chat(n=2, temperature=1.0)["choices"]
    equal(sorted(choice["index"] for choice in choices), [0, 1], "indices")


def user_in_id(server: Server) -> None:
    """`user` becomes part of the id, which keys routes in a store."""
    found = server.chat(user="smoke_epoch_1:a:0:0:0")["id"]
    true(
        found.startswith("chatcmpl-smoke_epoch_1:a:0:0:0-"),
        f"id is {found!r}, expected chatcmpl-USER-UUID",
    )


def token_ids(server: Server) -> None:
    """Ids in, ids out, by both endpoints."""
    fields = {"prompt_token_ids": PROMPT_IDS, "return_token_ids": True, "ignore_eos": True}
    for body, message in (
        (server.chat(messages=[], **fields), "message"),
        (server.completion(prompt="", **fields), None),
    ):
        choice = body["choices"][0]
        place = choice[message] if message else choice
        equal(place["prompt_token_ids"], PROMPT_IDS, "prompt_token_ids")
        equal(len(ids_of(choice)), NEW, "number of completion_token_ids")
        equal(body["usage"]["completion_tokens"], NEW, "usage.completion_tokens")
        equal(body["usage"]["prompt_tokens"], len(PROMPT_IDS), "usage.prompt_tokens")


def length(server: Server) -> None:
    """max_tokens reached."""
    choice = server.chat(ignore_eos=True)["choices"][0]
    equal(choice["finish_reason"], "length", "finish_reason")


def stop_token(server: Server) -> None:
    """An id of stop_token_ids ends it."""
    first = ids_of(server.chat(return_token_ids=True, ignore_eos=True)["choices"][0])
    choice = server.chat(stop_token_ids=[first[0]], return_token_ids=True)["choices"][0]
    equal(choice["finish_reason"], "stop", "finish_reason")
    true(len(ids_of(choice)) <= 1, f"{len(ids_of(choice))} tokens, though the first is a stop id")


def greedy_repeats(server: Server) -> None:
    """Temperature 0, twice."""
    first, second = (ids_of(server.chat(return_token_ids=True)["choices"][0]) for _ in range(2))
    equal(first, second, "tokens of the second answer")


def seed_repeats(server: Server) -> None:
    """A seed, twice."""
    fields = {"temperature": 1.0, "seed": 7, "return_token_ids": True}
    first, second = (ids_of(server.chat(**fields)["choices"][0]) for _ in range(2))
    equal(first, second, "tokens of the second answer")


def _logprobs(server: Server, **fields: object) -> list[Json]:
    body = server.chat_body(logprobs=True, return_token_ids=True, ignore_eos=True, **fields)
    response = server.post(CHAT, body)
    if response.status_code != 200 and "enable" in response.text.lower():
        raise Skip("started without --enable-logprob")
    choice = server.ok(response)["choices"][0]
    true(choice["logprobs"] is not None, "logprobs are null; start with --enable-logprob")
    content = choice["logprobs"]["content"]
    equal(len(content), len(ids_of(choice)), "entries of logprobs for the tokens")
    return content


def logprobs(server: Server) -> None:
    """One per token, at most 0."""
    for entry in _logprobs(server, top_logprobs=0):
        has(entry, ("token", "logprob", "bytes", "top_logprobs"), "an entry of logprobs")
        true(math.isfinite(entry["logprob"]) and entry["logprob"] <= 0,
             f"logprob is {entry['logprob']}")  # fmt: skip


def top_logprobs(server: Server) -> None:
    """The likeliest, in order; greedily, none above the sampled token."""
    for entry in _logprobs(server, top_logprobs=3):
        values = [other["logprob"] for other in entry["top_logprobs"]]
        equal(len(values), 3, "alternatives")
        equal(values, sorted(values, reverse=True), "alternatives, likeliest first")
        true(values[0] <= entry["logprob"] + 1e-4, "an alternative above the greedy token")


def scaled_logprobs(server: Server) -> None:
    """Raw by default; after the temperature if asked for."""
    fields = {"temperature": 0.5, "seed": 7, "top_logprobs": 0}
    raw = [entry["logprob"] for entry in _logprobs(server, **fields)]
    scaled = [entry["logprob"] for entry in _logprobs(server, temp_scaled_logprobs=True, **fields)]
    true(raw != scaled, "temp_scaled_logprobs changes nothing at temperature 0.5")


def no_logprobs(server: Server) -> None:
    """Without top_logprobs there are none, as in FastDeploy."""
    body = server.chat_body(logprobs=True)
    response = server.post(CHAT, body)
    if response.status_code != 200 and "enable" in response.text.lower():
        raise Skip("started without --enable-logprob")
    equal(server.ok(response)["choices"][0]["logprobs"], None, "logprobs")


def completion_logprobs(server: Server) -> None:
    """Lists of one length."""
    body = server.completion_body(logprobs=1, ignore_eos=True, return_token_ids=True)
    response = server.post(COMPLETIONS, body)
    if response.status_code != 200 and "enable" in response.text.lower():
        raise Skip("started without --enable-logprob")
    choice = server.ok(response)["choices"][0]
    found = choice["logprobs"]
    true(found is not None, "logprobs are null; start with --enable-logprob")
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        equal(len(found[name]), len(ids_of(choice)), f"length of {name}")


def routes(server: Server) -> str:
    """Chosen experts, for all tokens that were run."""
    if not server.options.ours:
        raise Skip("inline routes are not FastDeploy's; --ours checks them")
    body = server.chat(
        messages=[], prompt_token_ids=PROMPT_IDS, return_routed_experts=True, ignore_eos=True
    )
    found = body["choices"][0].get("routed_experts")
    if found is None:
        raise Skip("the model has no experts, or routes are stored elsewhere")
    equal(found["shape"][0], len(PROMPT_IDS) + NEW - 1, "rows of routes")
    return f"shape {found['shape']}, {found['dtype']}"


def version_spans(server: Server) -> None:
    """Which weights made which tokens."""
    if not server.options.ours:
        raise Skip("version spans are not FastDeploy's; --ours checks them")
    spans = server.chat(ignore_eos=True)["choices"][0]["version_spans"]
    equal(spans[0]["start"], 0, "start of the first span")
    equal(spans[-1]["end"], NEW, "end of the last span")


CHECKS: tuple[Check, ...] = (
    chat, completion, several_prompts, several_choices, user_in_id, token_ids, length, stop_token,
    greedy_repeats, seed_repeats, logprobs, top_logprobs, scaled_logprobs, no_logprobs,
    completion_logprobs, routes, version_spans,
)  # fmt: skip
