"""Bodies of requests: what is taken, what is refused, what is read out of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paddle_ernie.serve.api.protocol import (
    MAX_SEED,
    UNSUPPORTED,
    AbortRequest,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    UpdateWeightsRequest,
)

MESSAGES = [{"role": "user", "content": "x"}]


def chat(**fields) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=MESSAGES, **fields)


@pytest.mark.parametrize("name", sorted(GenerationRequest.model_fields))
def test_null_stands_for_not_given(name):
    """But not where FastDeploy's field is no option."""
    if name in ("temp_scaled_logprobs", "top_p_normalized_logprobs", "pack_routed_experts"):
        with pytest.raises(ValidationError):
            chat(**{name: None})
        return
    chat(**{name: None})
    CompletionRequest(prompt="x", **{name: None})


def test_unknown_fields_are_ignored():
    chat(parallel_tool_calls=True, store=False, collect_metrics=True, trace_context="x")


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_honoured_is_refused_not_ignored(name):
    kind = CompletionRequest if name == "suffix" else ChatCompletionRequest
    base = {"prompt": "x"} if name == "suffix" else {"messages": MESSAGES}
    value = 5 if name.endswith("_tokens") else "x"
    with pytest.raises(ValidationError, match=f"`{name}` is not supported"):
        kind(**base, **{name: value})
    kind(**base, **{name: None})


@given(st.integers() | st.floats() | st.booleans() | st.text(max_size=3))
def test_seeds_are_whole_numbers_up_to_fastdeploys_limit(seed):
    valid = type(seed) is int and 0 <= seed <= MAX_SEED
    try:
        chat(seed=seed)
    except ValidationError:
        assert not valid
    else:
        assert valid


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty",
                                  "frequency_penalty", "repetition_penalty"])  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.0, True, "high", 1e300])
def test_numbers_that_are_none_or_out_of_range(name, value):
    if (name, value) == ("temperature", 1e300):  # any temperature is one
        chat(temperature=value)
        return
    with pytest.raises(ValidationError):
        chat(**{name: value})


def test_limits_by_their_two_names():
    assert chat().token_limit is None
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=3).token_limit == 3
    assert CompletionRequest(prompt="x", max_tokens=5).token_limit == 5
    with pytest.raises(ValidationError, match="min_tokens is 4"):
        chat(min_tokens=4, max_completion_tokens=3)


def test_logprobs_by_their_rules():
    assert chat(logprobs=True).num_logprobs is None
    assert chat(logprobs=True, top_logprobs=0).num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=-1).num_logprobs == -1
    assert CompletionRequest(prompt="x", logprobs=0).num_logprobs == 0
    assert CompletionRequest(prompt="x").num_logprobs is None
    with pytest.raises(ValidationError, match="`logprobs` must be set to true"):
        chat(top_logprobs=1)


def test_stops():
    assert chat().stops == chat(stop=[]).stops == chat(stop="").stops == ()
    assert chat(stop="x").stops == ("x",)
    assert chat(stop=["x", "", "y"]).stops == ("x", "y")
    with pytest.raises(ValidationError):
        chat(stop=["x"] * 65)


def test_when_usage_is_told():
    plain = chat(stream=True)
    assert not plain.wants_final_usage and not plain.wants_running_usage
    default = chat(stream=True, stream_options={})
    assert default.wants_final_usage and not default.wants_running_usage, "FastDeploy's defaults"
    own = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert own.wants_final_usage and own.wants_running_usage
    with pytest.raises(ValidationError, match="only be defined when"):
        chat(stream_options={"include_usage": True})


def test_messages_are_turns_or_ids():
    assert ChatCompletionRequest(messages=[3, 4]).messages == [3, 4]
    with pytest.raises(ValidationError):
        ChatCompletionRequest(messages=[3, {"role": "user"}])
    with pytest.raises(ValidationError, match="empty list"):
        ChatCompletionRequest(messages=[])
    assert ChatCompletionRequest(messages=[], prompt_token_ids=[1]).prompt_token_ids == [1]


def test_tools_keep_what_we_do_not_know():
    tool = {"type": "function", "function": {"name": "f"}, "strict": True}
    (found,) = chat(tools=[tool]).tools or ()
    assert found.model_dump(exclude_unset=True) == tool
    for choice in ("auto", "none", None):
        chat(tool_choice=choice)
    with pytest.raises(ValidationError):
        chat(tool_choice="required")


def test_bodies_of_control_calls():
    assert AbortRequest(req_ids=[]).req_ids == []
    with pytest.raises(ValidationError, match="abort_all true, or req_ids"):
        AbortRequest()
    assert UpdateWeightsRequest(version=12).version == 12
    assert UpdateWeightsRequest().mode is None
    with pytest.raises(ValidationError):
        UpdateWeightsRequest(mode="maybe")


@pytest.mark.parametrize("kind", [GenerationRequest, ChatCompletionRequest, CompletionRequest])
def test_whole_numbers_have_limits_that_the_document_shows(kind):
    """They reach arrays of 32 and 64 bits."""
    for name, field in kind.model_json_schema()["properties"].items():
        for option in field.get("anyOf", [field]):
            if option.get("type") == "integer" and name not in UNSUPPORTED:
                assert {"minimum", "maximum"} <= set(option), name
