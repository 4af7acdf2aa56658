"""Ids, seeds, limits and sampling parameters of requests."""

import re

import pytest

from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.protocol import MAX_SEED, CompletionRequest
from paddle_ernie.serve.api.request_params import (
    check_length,
    check_model,
    choice_seed,
    response_id,
    sampling_params,
)
from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.engine.control import ModelInfo
from paddle_ernie.serve.routes import rollout_id
from paddle_ernie.serve.types import SamplingParams

UUID = r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"


def request(**fields) -> CompletionRequest:
    return CompletionRequest(prompt="x", **fields)


def params(tokenizer, index=0, settings=None, stop_ids=(), **fields) -> SamplingParams:
    fields = {"seed": 1, **fields}
    return sampling_params(
        request(**fields), index, tokenizer, settings or ServerSettings(), stop_ids
    )


def test_ids():
    assert re.fullmatch(f"cmpl-{UUID}", response_id("cmpl", request()))
    assert re.fullmatch(f"cmpl-me-{UUID}", response_id("cmpl", request(user="me")))
    assert response_id("cmpl", request(request_id="r", user="me")) == "cmpl-r"
    assert response_id("cmpl", request(request_id="cmpl-r")) == "cmpl-r"
    name = response_id("chatcmpl", request(user="run-1_epoch_15:7:2:1"))
    assert rollout_id(f"{name}_0") == "run-1_epoch_15:7:2:1"


def test_seeds_of_choices():
    assert [choice_seed(7, i) for i in range(3)] == [choice_seed(7, i) for i in range(3)]
    assert choice_seed(7, 0) == 7
    assert len({choice_seed(seed, i) for seed in range(50) for i in range(50)}) == 50 * 50
    assert all(0 <= choice_seed(None, 0) < MAX_SEED for _ in range(20))
    assert choice_seed(None, 0) != choice_seed(None, 0)


def test_defaults_are_the_engines(tokenizer):
    assert params(tokenizer) == SamplingParams(seed=1)


def test_everything_arrives(tokenizer):
    found = params(
        tokenizer, max_tokens=9, min_tokens=2, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1,
        presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, stop=["a", "b"],
        stop_token_ids=[5], include_stop_str_in_output=True, logit_bias={"3": 2}, logprobs=4,
        prompt_logprobs=0, temp_scaled_logprobs=True, top_p_normalized_logprobs=True,
        bad_words_token_ids=[8, 9],
    )  # fmt: skip
    assert found == SamplingParams(
        max_tokens=9, min_tokens=2, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1,
        presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, seed=1,
        stop=("a", "b"), stop_token_ids=frozenset({5}), include_stop_str_in_output=True,
        bad_words_token_ids=((8,), (9,)), logit_bias={3: 2.0}, logprobs=4, prompt_logprobs=0,
        temp_scaled_logprobs=True, top_p_normalized_logprobs=True,
    )  # fmt: skip


def test_special_values(tokenizer):
    assert params(tokenizer, top_k=-1).top_k == 0
    greedy = params(tokenizer, top_p=0)
    assert (greedy.top_p, greedy.top_k) == (1.0, 1)
    assert params(tokenizer, stop_ids={7}, stop_token_ids=[5]).stop_token_ids == {5, 7}
    ignoring = params(tokenizer, stop_ids={7}, stop_token_ids=[5], ignore_eos=True)
    assert ignoring.stop_token_ids == {5} and ignoring.ignore_eos
    words = params(tokenizer, bad_words=["main", "main", ""]).bad_words_token_ids
    assert set(words) == {tuple(tokenizer.encode(text)) for text in ("main", " main")}


def test_how_many_logprobs(tokenizer):
    size = tokenizer.vocab_size
    everything = ServerSettings(max_logprobs=-1)
    assert params(tokenizer, logprobs=20).logprobs == 20
    assert params(tokenizer, settings=everything, logprobs=-1).logprobs == size
    for settings, count, message in (
        (ServerSettings(), 21, "logprobs is 21; expected at most 20"),
        (ServerSettings(), -1, r"all \(-1\); expected at most 20"),
        (everything, size + 1, f"expected at most {size}"),
        (ServerSettings(enable_logprob=False), 1, "--no-enable-logprob"),
    ):
        with pytest.raises(ApiError, match=message):
            params(tokenizer, settings=settings, logprobs=count)
        with pytest.raises(ApiError, match=message):
            params(tokenizer, settings=settings, prompt_logprobs=count)


def test_models():
    check_model("anything", ServerSettings())
    named = ServerSettings(served_model_name="ernie")
    for name in ("ernie", "default", None):
        check_model(name, named)
    with pytest.raises(ApiError, match="'other' is not served here; expected 'ernie'") as caught:
        check_model("other", named)
    assert caught.value.code.value == "model_not_support"


def test_lengths():
    info = ModelInfo(max_model_len=10, vocab_size=9, num_experts=0, moe_k=0, num_moe_layers=0,
                     num_pages=1, version=0, checksum="", fingerprint="")  # fmt: skip
    check_length(9, request(max_tokens=100), info)
    for count, fields in ((10, {}), (8, {"min_tokens": 3})):
        with pytest.raises(ApiError) as caught:
            check_length(count, request(**fields), info)
        assert caught.value.code.value == "context_length_exceeded"
        assert f"{count} prompt tokens" in str(caught.value)
