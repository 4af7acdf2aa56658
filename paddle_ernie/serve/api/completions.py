"""POST /v1/completions: one or several prompts, as text or ids, n continuations of each.

choice i continues prompt i // n
"""

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddle_ernie.serve.api.chat_template import Prompt
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.openapi import COMPLETION_RESPONSES
from paddle_ernie.serve.api.protocol import CompletionRequest
from paddle_ernie.serve.api.request_params import response_id
from paddle_ernie.serve.api.service import Generation, Service
from paddle_ernie.serve.api.streaming import (
    Events,
    Json,
    TokenCounts,
    event_response,
    json_response,
    version_spans,
)
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.types import RequestOutput


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["generation"])

    @routes.post(
        "/v1/completions",
        summary="Continue a text",
        responses=COMPLETION_RESPONSES,
        response_class=Response,
    )
    async def completions(request: CompletionRequest, http: Request) -> Response:
        """Continue each prompt; as a whole, or as events while it is generated."""
        service.check(request)
        prompts = await make_prompts(service, request)
        name = response_id("cmpl", request)
        generation = service.start(name, prompts, request, record_of(http.scope))
        answer = _Completions(service, request, prompts, name)
        if request.stream:
            return event_response(answer.stream(generation))
        async with generation:
            return json_response(await answer.whole(generation))

    return routes


async def make_prompts(service: Service, request: CompletionRequest) -> list[Prompt]:
    """`prompt_token_ids` if given, else `prompt`; each a list or a list of lists."""
    given = request.prompt_token_ids or request.prompt
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    prompts = []
    for prompt in several:
        if isinstance(prompt, str):
            prompts.append(Prompt(await service.encode(prompt), prompt))
        else:
            assert isinstance(prompt, list)
            ids = tuple(token for token in prompt if isinstance(token, int))
            prompts.append(Prompt(ids, service.decode(ids)))
        if not prompts[-1].ids:
            raise ApiError("a prompt is empty; expected one token or more", param="prompt")
    return prompts


class _Completions:
    """The choices of one request."""

    def __init__(
        self, service: Service, request: CompletionRequest, prompts: list[Prompt], name: str
    ) -> None:
        self._service = service
        self._request = request
        self._prompts = prompts
        self._name = name
        self._model = request.model or "default"
        self._n = request.n or 1
        self._counts = TokenCounts(sum(len(prompt.ids) for prompt in prompts))
        self._begun: set[int] = set()

    async def whole(self, generation: Generation) -> Json:
        """The answer as one object, every key there."""
        choices = []
        for index, output in enumerate(await generation.whole()):
            self._counts.add(index // self._n, output)
            choices.append(self._choice(index, output))
        return {
            "id": self._name,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": choices,
            "usage": self._counts.usage(),
        }

    def _choice(self, index: int, output: RequestOutput) -> Json:
        prompt = self._prompts[index // self._n]
        with_ids = self._request.return_token_ids
        return {
            "index": index,
            "text": (prompt.text if self._request.echo else "") + output.text,
            "prompt_token_ids": list(prompt.ids) if with_ids else None,
            "completion_token_ids": list(output.token_ids) if with_ids else None,
            "prompt_tokens": prompt.text if with_ids else None,
            "completion_tokens": output.text if with_ids else None,
            "arrival_time": None,
            "logprobs": self._logprobs(output),
            "draft_logprobs": None,
            "prompt_logprobs": self._prompt_logprobs(index, output),
            "reasoning_content": None,
            "finish_reason": output.finish_reason.value if output.finish_reason else None,
            "tool_calls": None,
            "speculate_metrics": None,
            "version_spans": version_spans(output),
            "routed_experts": self._service.encode_routes(output, self._request),
        }

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The answer as events."""
        events = Events(self._name, "text_completion", self._model)
        running = self._request.wants_running_usage
        async with generation:
            if self._request.return_token_ids:
                for index in range(len(self._prompts) * self._n):
                    yield events.chunk([self._first(index)])
            async for index, output in generation.outputs():
                self._counts.add(index // self._n, output)
                usage = self._counts.usage() if running else None
                yield events.chunk([self._growth(index, output, events)], usage)
        if self._request.wants_final_usage:
            yield events.chunk([], self._counts.usage())

    def _first(self, index: int) -> Json:
        prompt = self._prompts[index // self._n]
        return {
            "index": index,
            "text": "",
            "prompt_token_ids": list(prompt.ids),
            "prompt_tokens": prompt.text,
            "completion_token_ids": None,
        }

    def _growth(self, index: int, output: RequestOutput, events: Events) -> Json:
        text = output.text
        if self._request.echo and index not in self._begun:
            self._begun.add(index)
            text = self._prompts[index // self._n].text + text
        choice: Json = {"index": index, "text": text, "arrival_time": events.arrival_time()}
        if self._request.return_token_ids:
            choice["completion_token_ids"] = list(output.token_ids)
            choice["completion_tokens"] = output.text
        if output.logprobs is not None:
            choice["logprobs"] = self._logprobs(output)
        if output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(index, output)
        if output.finish_reason is not None:
            choice["finish_reason"] = output.finish_reason.value
            choice["version_spans"] = version_spans(output)
            if output.routes is not None:
                choice["routed_experts"] = self._service.encode_routes(output, self._request)
        return choice

    def _logprobs(self, output: RequestOutput) -> Json | None:
        if output.logprobs is None:
            return None
        decode = bool(self._request.include_logprobs_decode_token)
        return self._service.texts.completion(output.token_ids, output.logprobs, decode=decode)

    def _prompt_logprobs(self, index: int, output: RequestOutput) -> list[Json | None] | None:
        if output.prompt_logprobs is None:
            return None
        decode = bool(self._request.include_logprobs_decode_token)
        ids = self._prompts[index // self._n].ids
        return self._service.texts.prompt(ids, output.prompt_logprobs, decode=decode)
