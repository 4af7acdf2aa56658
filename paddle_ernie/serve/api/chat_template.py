"""Conversations to prompts: a model's chat template in jinja2's sandbox.

    messages, tools --> template of the model (as transformers evaluates it) --> text --> ids

Called by the chat handlers and the terminal chat. Templates of trained tokenizers (data/chat.py)
and of published models work: `raise_exception`, `strftime_now`, `tojson` without escapes, loop
controls and `{% generation %}` are there. A fault in messages or template is an ApiError: 400.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paddle_ernie.data.tokenizer import CONFIG_FILE, Tokenizer
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.tool_calls import THINK_END, THINK_START
from paddle_ernie.utils.errors import InputError

TEMPLATE_FILE = "chat_template.jinja"
TURN_ENDS = ("<|turn_end|>", "<|im_end|>", "<|eot_id|>", "<|end_of_sentence|>", "<end_of_turn>")
"""Tokens that end a turn in the templates of known models, ours first."""

SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """What a model is given."""

    ids: tuple[int, ...]
    text: str
    """As rendered; of a prompt that came as ids, what they decode to."""

    @property
    def opens_reasoning(self) -> bool:
        """Whether the template left the reply inside <think>."""
        return self.text.rstrip().endswith(THINK_START)


class ChatTemplate:
    """A model's template and the tokens it may write."""

    def __init__(self, sources: Mapping[str, str], tokenizer: Tokenizer, where: str) -> None:
        """`sources`: "default", and optionally "tool_use" for requests with tools."""
        self._sources = dict(sources)
        self._compiled = {name: _compile(text, where) for name, text in sources.items()}
        self._tokenizer = tokenizer
        self._special = _special_tokens(tokenizer.config)
        self.stop_ids = frozenset(self._turn_ends())

    @property
    def knows_reasoning(self) -> bool:
        """Whether replies may hold <think>."""
        return any(THINK_END in text for text in self._sources.values())

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> str:
        """The prompt's text. `template` replaces the model's; ApiError if it cannot be made."""
        chosen = self._choose(template, bool(tools))
        parse_arguments = "arguments is string" not in chosen[0]
        context = {
            **self._special,
            "add_generation_prompt": True,
            **(variables or {}),
            "messages": [_plain(m, parse_arguments) for m in messages],
            "tools": list(tools) if tools else None,
        }
        try:
            return chosen[1].render(context)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError,
                ArithmeticError, RecursionError, MemoryError) as error:  # fmt: skip
            raise ApiError(f"chat template: {error}", param="messages") from error

    def prompt(self, text: str) -> Prompt:
        """A rendered conversation with its ids; special tokens in it are special."""
        return Prompt(tuple(self._tokenizer.encode(text, allow_special=True)), text)

    def _choose(self, template: str | None, has_tools: bool) -> tuple[str, jinja2.Template]:
        if template is not None:
            try:
                return template, _compile(template, "chat_template")
            except InputError as error:
                raise ApiError(str(error), param="chat_template") from error
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise ApiError(
                "this model has no chat template; send prompt_token_ids, disable_chat_template, "
                "or use /v1/completions",
                param="messages",
            )
        return self._sources[name], self._compiled[name]

    def _turn_ends(self) -> list[int]:
        names = [n for n in TURN_ENDS if any(n in text for text in self._sources.values())]
        added = self._tokenizer.added_tokens
        return [added[name] for name in names if name in added]


def load_chat_template(
    tokenizer: Tokenizer, model_dir: Path | None = None, override: str | None = None
) -> ChatTemplate:
    """The override; else the file beside the model; else tokenizer_config.json's; else none."""
    if override is not None:
        return ChatTemplate({"default": override}, tokenizer, "--chat-template")
    file = model_dir / TEMPLATE_FILE if model_dir else None
    if file is not None and file.is_file():
        return ChatTemplate({"default": file.read_text(encoding="utf-8")}, tokenizer, str(file))
    given = tokenizer.config.get("chat_template")
    where = f"{model_dir or 'model'}/{CONFIG_FILE}: chat_template"
    if given is None:
        return ChatTemplate({}, tokenizer, where)
    if isinstance(given, str):
        return ChatTemplate({"default": given}, tokenizer, where)
    try:
        sources = {entry["name"]: entry["template"] for entry in given}
    except (TypeError, KeyError) as error:
        raise InputError(f"{where}: expected a text or a list of name and template") from error
    return ChatTemplate(sources, tokenizer, where)


def check_messages(messages: Sequence[Message]) -> None:
    """ApiError at the first message without a role, or with content that is not text."""
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ApiError(
                f"messages[{place}]: role is {message.get('role')!r:.100}; expected a text such as "
                "'user'",
                param="role",
            )
        text_of(message.get("content"), f"messages[{place}].content")
        calls = message.get("tool_calls")
        if calls is not None and not (
            isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
        ):
            raise ApiError(f"messages[{place}]: tool_calls is not a list of objects",
                           param="tool_calls")  # fmt: skip


def text_of(content: Any, where: str = "content") -> str | None:
    """A message's text: itself, or OpenAI's list of {"type": "text", "text": ...} joined."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str) or (isinstance(part, dict) and part.get("type") != "text"):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ApiError(
                f"{where}: a part of type {kind!r:.100}; this model reads text only",
                param="content",
            )
    return "".join(texts)


def _plain(message: Message, parse_arguments: bool) -> dict[str, Any]:
    """Content as one text, which every template can take, and arguments as the template wants them.

    OpenAI writes a call's arguments as JSON text. Most published templates expect the value; those
    that ask for both get the text, which is what the model had written.
    """
    plain = {**message, "content": text_of(message.get("content"))}
    if parse_arguments and message.get("tool_calls"):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
    return plain


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        message = f"arguments of a tool call are no JSON: {error}"
        raise ApiError(message, param="arguments") from error
    return {**call, "function": {**function, "arguments": arguments}}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {role: config.get(role) for role in SPECIAL_ROLES}
    texts = {role: v.get("content") if isinstance(v, dict) else v for role, v in found.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks replies for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """jinja2's own escapes HTML. The options are json.dumps's, as in transformers."""
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _compile(source: str, where: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        at = f" at line {line}" if line else ""
        raise InputError(f"{where}: not a jinja template{at}: {error}") from error
