"""The special tokens of a trained tokenizer and the chat template that uses them.

A conversation is rendered as

    <|turn_start|>system
    You are ...<|turn_end|>
    <|turn_start|>user
    What is 2 + 3?<|turn_end|>
    <|turn_start|>assistant
    <think>...</think>5<|turn_end|>

Tools are listed in the system turn between <tools> and </tools>, one JSON schema a line; a call is
<tool_call>{"name": ..., "arguments": {...}}</tool_call> in an assistant turn, and its result
<tool_response>...</tool_response> in a `tool` turn.
"""

EOS = "<|endoftext|>"
BOS = "<|beginoftext|>"
PAD = "<|pad|>"
MASK = "<|mask|>"
TURN_START = "<|turn_start|>"
TURN_END = "<|turn_end|>"

CONTROL_TOKENS = (EOS, BOS, PAD, MASK, TURN_START, TURN_END)
"""Never text: `decode` leaves them out."""

TAG_TOKENS = (
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""One id each, but text for whoever parses a reply: `decode` shows them."""

NUM_SPECIAL_TOKENS = 32
"""Control tokens, tags and reserved slots; with 256 bytes they fit the least vocabulary."""

SPECIAL_TOKENS = (
    *CONTROL_TOKENS,
    *TAG_TOKENS,
    *(
        f"<|reserved_{i}|>"
        for i in range(NUM_SPECIAL_TOKENS - len(CONTROL_TOKENS) - len(TAG_TOKENS))
    ),
)
"""Ids 0 .. NUM_SPECIAL_TOKENS - 1 of a trained tokenizer, in this order."""

CHAT_TEMPLATE = """\
{%- macro text_of(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content or [] %}
            {{- part if part is string else part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if messages and messages[0].role == 'system' %}
    {%- set system = text_of(messages[0].content) %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- if system or tools %}
    {{- '<|turn_start|>system\\n' + system }}
    {%- if tools %}
        {{- '\\n\\n' if system else '' }}
        {{- 'Tools you can call:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' + (tool | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>\\nTo call one: <tool_call>{"name": ..., "arguments": {...}}</tool_call>' }}
    {%- endif %}
    {{- '<|turn_end|>\\n' }}
{%- endif %}
{%- for message in turns %}
    {{- '<|turn_start|>' + message.role + '\\n' }}
    {%- if message.role == 'tool' %}
        {{- '<tool_response>' + text_of(message.content) + '</tool_response>' }}
    {%- else %}
        {%- if message.reasoning_content %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- text_of(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '<tool_call>{"name": ' + (call.name | tojson) + ', "arguments": ' }}
            {{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
            {{- '}</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|turn_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn_start|>assistant\\n' }}
{%- endif %}
"""
"""Jinja, as `transformers` and FastDeploy evaluate it (messages, tools, add_generation_prompt).

A content is a string, null, or OpenAI's list of {"type": "text", "text": ...}.
"""
