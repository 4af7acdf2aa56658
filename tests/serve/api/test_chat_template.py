"""Chat templates: ours and published ones render as transformers renders them, safely."""

import json
from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from paddle_ernie.data.chat import CHAT_TEMPLATE
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.serve.api.chat_template import (
    ChatTemplate,
    Prompt,
    check_messages,
    load_chat_template,
    text_of,
)
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.utils.errors import InputError
from tests.serve.talking import TOOLS

# In the manner of SmolLM2's, ERNIE 4.5's and Qwen's.
SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ERNIE = """
{%- if not cls_token is defined -%}
    {%- set cls_token = "<|begin_of_sentence|>" -%}
{%- endif -%}
{{- cls_token -}}
{%- for message in messages -%}
    {%- if message["role"] == "user" -%}
        {{- "User: " + message["content"] + "\n" -}}
    {%- elif message["role"] == "assistant" -%}
        {{- "Assistant: " + message["content"] + eos_token -}}
    {%- elif message["role"] == "system" -%}
        {{- message["content"] + "\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt is not defined or add_generation_prompt is true -%}
    {{- "Assistant: " -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- "<think>\n" -}}{%- endif -%}
{%- endif -%}
"""
CALLS = """
{%- if tools %}
    {{- '# Tools' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" and loop.last %}{% break %}{% endif %}
    {{- message.role }}: {% generation %}{{ message.content or '' }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}
        {{- '<' ~ call.function.name ~ '>' }}{{ call.function.arguments.items() | list | tojson }}
        {{- call.function.arguments | tojson(indent=2) }}
    {%- endfor %}
{%- endfor %}
"""

CONVERSATIONS = (
    [{"role": "user", "content": "hi <b>&é"}],
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
)
WITH_CALL = [
    {"role": "user", "content": "add"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a":  1, "b": "é"}'},
            }
        ],
    },
    {"role": "tool", "content": "1"},
]


@pytest.fixture(scope="module")
def reference(tokenizer, tmp_path_factory):
    """transformers' rendering with a template."""
    folder = tmp_path_factory.mktemp("reference")
    tokenizer.save(folder)
    own = PreTrainedTokenizerFast.from_pretrained(folder)

    def render(template, messages, tools=None, **variables) -> str:
        return own.apply_chat_template(
            messages, tools, chat_template=template, tokenize=False,
            add_generation_prompt=True, **variables,
        )  # fmt: skip

    return render


def template_of(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer, "test")


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, SMOL, ERNIE, CALLS])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_as_transformers_does(tokenizer, reference, source, messages, tools):
    assert template_of(source, tokenizer).render(messages, tools) == reference(
        source, messages, tools
    )


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, CALLS])
def test_calls_render_as_values_or_as_they_were_written(tokenizer, reference, source):
    """transformers leaves the parsing of arguments to its callers."""
    parsed = json.loads(json.dumps(WITH_CALL))
    if source is CALLS:
        function = parsed[1]["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
    text = template_of(source, tokenizer).render(WITH_CALL)
    assert text == reference(source, parsed)
    if source is CHAT_TEMPLATE:
        assert '{"a":  1, "b": "é"}' in text


def test_variables_reach_the_template(tokenizer):
    template = template_of(ERNIE, tokenizer)
    prompt = template.render(CONVERSATIONS[0], variables={"enable_thinking": True})
    assert prompt.endswith("Assistant: <think>\n")
    assert Prompt((1,), prompt).opens_reasoning
    assert not Prompt((1,), template.render(CONVERSATIONS[0])).opens_reasoning
    quiet = template.render(CONVERSATIONS[0], variables={"add_generation_prompt": False})
    assert not quiet.endswith("Assistant: ")


def test_special_tokens_become_single_ids(tokenizer):
    template = load_chat_template(tokenizer)
    prompt = template.prompt(template.render([{"role": "user", "content": "hi"}]))
    start = tokenizer.token_id("<|turn_start|>")
    assert prompt.ids.count(start) == 2
    assert template.stop_ids == {tokenizer.token_id("<|turn_end|>")}
    assert template.knows_reasoning


def test_where_a_template_comes_from(tokenizer, tmp_path):
    def first(**options) -> str:
        return load_chat_template(tokenizer, **options).render([{"role": "user", "content": "x"}])

    assert first().startswith("<|turn_start|>")
    assert first(model_dir=tmp_path).startswith("<|turn_start|>")
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert first(model_dir=tmp_path) == "from the file"
    assert first(model_dir=tmp_path, override="from the flag") == "from the flag"


def test_a_list_of_templates(tokenizer, monkeypatch):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    monkeypatch.setitem(tokenizer.config, "chat_template", named)
    template = load_chat_template(tokenizer)
    assert template.render([]) == "plain" and template.render([], TOOLS) == "tools"
    monkeypatch.setitem(tokenizer.config, "chat_template", [{"name": "x"}])
    with pytest.raises(InputError, match="list of name and template"):
        load_chat_template(tokenizer)


def test_without_a_template_chats_are_refused(tokenizer, monkeypatch):
    monkeypatch.delitem(tokenizer.config, "chat_template")
    template = load_chat_template(tokenizer)
    assert template.stop_ids == frozenset() and not template.knows_reasoning
    with pytest.raises(ApiError, match="no chat template"):
        template.render(CONVERSATIONS[0])


def test_a_template_of_the_request(tokenizer):
    template = template_of(SMOL, tokenizer)
    assert (
        template.render([{"role": "user", "content": "x"}], template="{{ messages|length }}") == "1"
    )
    with pytest.raises(ApiError, match="chat_template: not a jinja template at line 2"):
        template.render([], template="\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only users') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__['os'].system('true') }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ strftime_now(3) }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_of_the_request(tokenizer, source):
    with pytest.raises(ApiError, match="chat template") as caught:
        template_of(source, tokenizer).render([{"role": "user", "content": "x"}])
    assert caught.value.status == 400


def test_the_date_is_there(tokenizer):
    template = template_of("{{ strftime_now('%Y') }}", tokenizer)
    assert template.render([]) == str(datetime.now().year)


def test_a_template_of_the_model_that_is_no_template(tokenizer):
    with pytest.raises(InputError, match="test: not a jinja template at line 1"):
        template_of("{% for %}", tokenizer)


def test_content_may_be_a_list_of_texts(tokenizer):
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    assert text_of(parts) == "abc"
    assert "\nabc<|im_end|>" in template_of(SMOL, tokenizer).render(
        [{"role": "user", "content": parts}]
    )


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": 3},
        {"role": "user", "content": 3},
        {"role": "user", "content": {"text": "x"}},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [None]},
        {"role": "assistant", "tool_calls": 3},
        {"role": "assistant", "tool_calls": [3]},
    ],
)
def test_messages_that_are_none(message):
    with pytest.raises(ApiError, match=r"messages\[1\]"):
        check_messages([{"role": "user", "content": None}, message])


def test_arguments_that_are_no_json(tokenizer):
    call = {"function": {"name": "f", "arguments": "{"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(ApiError, match="no JSON"):
        template_of(CALLS, tokenizer).render([message])
    # A call of a form we do not know is the template's business.
    odd = {**message, "tool_calls": [{"function": "x"}, {}]}
    assert template_of(SMOL, tokenizer).render([odd])
