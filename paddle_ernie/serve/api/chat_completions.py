"""POST /v1/chat/completions.

    messages -> template -> prompt -> n sequences -> parser of each -> reasoning, text, tool calls

Both forms go through the same parser; a stream sends what each output of the engine adds, at most
one event per output.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddle_ernie.serve.api.chat_template import Prompt, check_messages, text_of
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.openapi import CHAT_RESPONSES
from paddle_ernie.serve.api.protocol import ChatCompletionRequest
from paddle_ernie.serve.api.request_params import response_id
from paddle_ernie.serve.api.service import LONG_TEXT_CHARS, Generation, Service, respond
from paddle_ernie.serve.api.streaming import (
    Events,
    Json,
    TokenCounts,
    head_of,
    version_spans,
)
from paddle_ernie.serve.api.tool_calls import THINK_END, ParsedCall, Parts, ReplyParser
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.types import FinishReason, RequestOutput


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["generation"])

    @routes.post(
        "/v1/chat/completions",
        summary="Reply to a conversation",
        responses=CHAT_RESPONSES,
        response_class=Response,
    )
    async def chat_completions(request: ChatCompletionRequest, http: Request) -> Response:
        """Reply to messages, or to a prompt given as token ids; as a whole, or as events while it
        is generated.
        """
        service.check(request)
        prompt = await make_prompt(service, request)
        record = record_of(http.scope)
        name = response_id("chatcmpl", request)
        stops = service.template.stop_ids
        generation = service.start(name, [prompt], request, record, stops)
        reply = _Replies(service, request, prompt, name)
        return await respond(reply, generation, stream=bool(request.stream))

    return routes


async def make_prompt(service: Service, request: ChatCompletionRequest) -> Prompt:
    """The ids that the engine gets, with `completion_token_ids` behind them."""
    prompt = await _own_prompt(service, request)
    extra = tuple(request.completion_token_ids or ())
    if not extra:
        return prompt
    return Prompt(prompt.ids + extra, prompt.text + service.decode(extra))


async def _own_prompt(service: Service, request: ChatCompletionRequest) -> Prompt:
    ids = request.prompt_token_ids or [m for m in request.messages if isinstance(m, int)]
    if ids:
        return Prompt(tuple(ids), service.decode(ids))
    messages: list[Any] = list(request.messages)
    if request.disable_chat_template:
        text = text_of(messages[0].get("content")) or ""
        return Prompt(await service.encode(text), text)
    check_messages(messages)
    if request.chat_template and not service.settings.trust_request_chat_template:
        raise ApiError(
            "chat_template: this server takes no templates from requests "
            "(--trust-request-chat-template)",
            param="chat_template",
        )
    tools = None if request.tool_choice == "none" else request.tools
    text = service.template.render(
        messages,
        [tool.model_dump(exclude_unset=True) for tool in tools or ()],
        request.chat_template_kwargs,
        request.chat_template or None,
    )
    if len(text) < LONG_TEXT_CHARS:
        return service.template.prompt(text)
    return await asyncio.to_thread(service.template.prompt, text)


class _Replies:
    """The n replies of one request."""

    def __init__(
        self, service: Service, request: ChatCompletionRequest, prompt: Prompt, name: str
    ) -> None:
        self._service = service
        self._request = request
        self._prompt = prompt
        self._name = name
        self._model = request.model or "default"
        self._counts = TokenCounts(len(prompt.ids))
        self._replies = [_Reply(service, request, prompt) for _ in range(request.n or 1)]

    async def whole(self, generation: Generation) -> Json:
        """The answer as one object, every key there."""
        outputs = await generation.whole()
        choices = []
        for index, (reply, output) in enumerate(zip(self._replies, outputs, strict=True)):
            self._counts.add(0, output)
            choices.append(self._choice(index, reply, output))
        self._counts.reasoning = sum(reply.reasoning_tokens for reply in self._replies)
        head = head_of(self._name, "chat.completion", self._model)
        return {**head, "choices": choices, "usage": self._counts.usage()}

    def _choice(self, index: int, reply: "_Reply", output: RequestOutput) -> Json:
        parts = reply.push(output)
        calls = [_call(call) for call in parts.calls] or None
        service, request = self._service, self._request
        with_ids = request.return_token_ids
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": parts.content if parts.content or not calls else None,
                "multimodal_content": None,
                "reasoning_content": parts.reasoning or None,
                "audio_content": None,
                "tool_calls": calls,
                "prompt_token_ids": list(self._prompt.ids) if with_ids else None,
                "completion_token_ids": list(output.token_ids) if with_ids else None,
                "prompt_tokens": self._prompt.text if with_ids else None,
                "completion_tokens": output.text if with_ids else None,
            },
            "logprobs": service.logprobs(output, request, service.texts.chat),
            "draft_logprobs": None,
            "prompt_logprobs": service.prompt_logprobs(output, request, self._prompt),
            "finish_reason": reply.finish_reason(output),
            "speculate_metrics": None,
            "version_spans": version_spans(output),
            "routed_experts": service.encode_routes(output, request),
        }

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The answer as events."""
        events = Events(self._name, "chat.completion.chunk", self._model)
        running = self._request.wants_running_usage
        async with generation:
            for index in range(len(self._replies)):
                usage = self._counts.usage() if running else None
                yield events.chunk([self._first(index)], usage, first=True)
            async for index, output in generation.outputs():
                choice = self._growth(index, output, events)
                if choice is not None:
                    yield events.chunk([choice], self._counts.usage() if running else None)
        if self._request.wants_final_usage:
            yield events.chunk([], self._counts.usage())

    def _first(self, index: int) -> Json:
        delta: Json = {
            "role": "assistant",
            "content": "",
            "reasoning_content": "",
            "tool_calls": None,
            "prompt_token_ids": None,
            "completion_token_ids": None,
        }
        if self._request.return_token_ids:
            delta["prompt_token_ids"] = list(self._prompt.ids)
            delta["prompt_tokens"] = self._prompt.text
        return {"index": index, "delta": delta}

    def _growth(self, index: int, output: RequestOutput, events: Events) -> Json | None:
        """What an output adds to a reply; None if it is all held back for now."""
        reply = self._replies[index]
        parts = reply.push(output)
        self._counts.add(0, output)
        self._counts.reasoning += reply.take_reasoning_tokens()
        with_ids = self._request.return_token_ids
        last = output.finish_reason is not None
        if not (parts or last or output.logprobs or output.prompt_logprobs or with_ids):
            return None
        delta: Json = {"content": parts.content}
        if parts.reasoning:
            delta["reasoning_content"] = parts.reasoning
        if parts.calls:
            start = reply.num_calls - len(parts.calls)
            delta["tool_calls"] = [
                {"index": start + i, **_call(call)} for i, call in enumerate(parts.calls)
            ]
        if with_ids:
            delta["completion_token_ids"] = list(output.token_ids)
            delta["completion_tokens"] = output.text
        choice: Json = {"index": index, "delta": delta, "arrival_time": events.arrival_time()}
        service = self._service
        choice |= service.what_came(output, self._request, self._prompt, service.texts.chat)
        if last:
            choice["finish_reason"] = reply.finish_reason(output)
        return choice


class _Reply:
    """One reply as it grows."""

    def __init__(self, service: Service, request: ChatCompletionRequest, prompt: Prompt) -> None:
        tools = bool(request.tools) and request.tool_choice != "none"
        self._parser = ReplyParser(
            reasoning=service.parse_reasoning,
            tools=tools and service.settings.parse_tool_calls,
            in_reasoning=prompt.opens_reasoning,
        )
        self._think_end = service.worker.tokenizer.added_tokens.get(THINK_END)
        self.reasoning_tokens = 0
        self._taken = 0

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return self._parser.num_calls

    def push(self, output: RequestOutput) -> Parts:
        """The parts of an output that became certain; of a last one, all that is left."""
        thought = self._parser.in_reasoning
        parts = self._parser.push(output.text)
        if output.finish_reason is not None:
            rest = self._parser.finish()
            parts.content += rest.content
            parts.reasoning += rest.reasoning
        if thought or parts.reasoning:
            self.reasoning_tokens += self._count_reasoning(output)
        return parts

    def take_reasoning_tokens(self) -> int:
        """Those that came since the last call."""
        new, self._taken = self.reasoning_tokens - self._taken, self.reasoning_tokens
        return new

    def finish_reason(self, output: RequestOutput) -> str | None:
        """As in the answer: a reply that ends with calls says so."""
        if output.finish_reason is FinishReason.STOP and self.num_calls:
            return "tool_calls"
        return output.finish_reason.value if output.finish_reason else None

    def _count_reasoning(self, output: RequestOutput) -> int:
        """Tokens up to </think>, where that is a token; else all of the output's."""
        ids = output.token_ids
        return ids.index(self._think_end) + 1 if self._think_end in ids else len(ids)


def _call(call: ParsedCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}
