"""The chat template as `transformers` renders it, and its special tokens."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from paddle_ernie.data import chat
from paddle_ernie.data.tokenizer import Tokenizer

ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "use the tool",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": "二"}}}],
    },
    {"role": "tool", "content": "5"},
    {"role": "assistant", "content": "5"},
]


@pytest.fixture(scope="module")
def theirs(tokenizer_dir: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)


def test_conversation_with_tools(theirs: PreTrainedTokenizerFast) -> None:
    rendered = theirs.apply_chat_template(MESSAGES, tools=[ADD], tokenize=False)
    assert rendered == (
        "<|turn_start|>system\nBe brief.\n\nTools you can call:\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "description": "Adds.", '
        '"parameters": {"type": "object"}}}\n</tools>\n'
        'To call one: <tool_call>{"name": ..., "arguments": {...}}</tool_call><|turn_end|>\n'
        "<|turn_start|>user\n2+3?<|turn_end|>\n"
        "<|turn_start|>assistant\n<think>use the tool</think>"
        '<tool_call>{"name": "add", "arguments": {"a": "二"}}</tool_call><|turn_end|>\n'
        "<|turn_start|>tool\n<tool_response>5</tool_response><|turn_end|>\n"
        "<|turn_start|>assistant\n5<|turn_end|>\n"
    )


def test_generation_prompt_without_system_or_tools(theirs: PreTrainedTokenizerFast) -> None:
    rendered = theirs.apply_chat_template(MESSAGES[1:2], tokenize=False, add_generation_prompt=True)
    assert rendered == "<|turn_start|>user\n2+3?<|turn_end|>\n<|turn_start|>assistant\n"


def test_content_in_parts_and_without_content(theirs: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": None},
        {"role": "user", "content": parts},
        {"role": "tool", "content": None},
    ]
    rendered = theirs.apply_chat_template(messages, tools=[ADD], tokenize=False)
    assert rendered.startswith("<|turn_start|>system\nTools you can call:")
    assert rendered.endswith(
        "<|turn_start|>user\nab<|turn_end|>\n"
        "<|turn_start|>tool\n<tool_response></tool_response><|turn_end|>\n"
    )


def test_ids_of_a_rendered_chat(theirs: PreTrainedTokenizerFast, tokenizer: Tokenizer) -> None:
    rendered = theirs.apply_chat_template(MESSAGES, tokenize=False)
    ids = theirs.apply_chat_template(MESSAGES, tokenize=True, return_dict=True).input_ids
    assert tokenizer.encode(rendered, allow_special=True) == ids
    assert ids.count(tokenizer.token_id(chat.TURN_END)) == len(MESSAGES)


def test_special_tokens_are_distinct_and_fit() -> None:
    assert len(set(chat.SPECIAL_TOKENS)) == chat.NUM_SPECIAL_TOKENS == len(chat.SPECIAL_TOKENS)
