"""Tokens and their log-probabilities as FastDeploy spells them."""

import json

import pytest

from paddle_ernie.serve.api.responses import CompletionLogprobs, Logprobs, PromptLogprob
from paddle_ernie.serve.api.token_texts import TokenTexts
from paddle_ernie.serve.types import TokenLogprob


@pytest.fixture
def texts(tokenizer):
    return TokenTexts(tokenizer)


def test_every_id_has_a_text(texts, tokenizer):
    spelt = [texts.text(token) for token in range(tokenizer.vocab_size)]
    json.dumps(spelt, ensure_ascii=False).encode()
    assert "" not in spelt
    for token, text in enumerate(spelt):
        if not text.startswith("bytes:") and tokenizer.table[token]:
            assert tokenizer.decode([token]) == text


def test_what_is_no_text(texts, tokenizer):
    euro = tokenizer.encode_bytes(b"\xe2")[0]
    assert texts.text(euro) == "bytes:\\xe2"
    assert texts.text(tokenizer.token_id("<|turn_end|>")) == "<|turn_end|>"
    assert texts.text(tokenizer.vocab_size + 3) == f"token_id:{tokenizer.vocab_size + 3}"
    assert texts.text(euro, decode=False) == f"token_id:{euro}"


def test_forms(texts, tokenizer):
    ids = tokenizer.encode("hi")
    found = [TokenLogprob(-0.5 - i, ((9, -0.25), (ids[i], -0.5 - i))) for i in range(len(ids))]
    chat = Logprobs.model_validate(texts.chat(ids, found))
    assert [entry.token for entry in chat.content] == [texts.text(token) for token in ids]
    assert [entry.logprob for entry in chat.content] == [f.logprob for f in found]
    assert [top.logprob for top in chat.content[0].top_logprobs] == [-0.25, -0.5]
    plain = CompletionLogprobs.model_validate(texts.completion(ids, found))
    assert plain.token_logprobs == [f.logprob for f in found]
    assert plain.top_logprobs[0] == {texts.text(9): -0.25, texts.text(ids[0]): -0.5}


def test_prompts(texts):
    found = texts.prompt([40, 41], [None, TokenLogprob(-3.0, ((7, -0.1), (41, -3.0)))])
    assert found[0] is None
    records = {int(key): PromptLogprob.model_validate(value) for key, value in found[1].items()}
    assert {token: record.rank for token, record in records.items()} == {41: 2, 7: 1}
    assert list(found[1]) == ["41", "7"], "the prompt's own token first"
    (outside,) = texts.prompt([40], [TokenLogprob(-9.0, ((7, -0.1),))])
    assert outside["40"]["rank"] is None
    (coded,) = texts.prompt([40], [TokenLogprob(-9.0)], decode=False)
    assert coded["40"]["decoded_token"] is None
