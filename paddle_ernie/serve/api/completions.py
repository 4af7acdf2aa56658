"""POST /v1/completions: one or several prompts, as text or ids, n continuations of each.

choice i continues prompt i // n
"""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import Response

from paddle_ernie.serve.api.chat_template import Prompt
from paddle_ernie.serve.api.errors import ApiError
from paddle_ernie.serve.api.openapi import COMPLETION_RESPONSES
from paddle_ernie.serve.api.protocol import CompletionRequest
from paddle_ernie.serve.api.request_params import response_id
from paddle_ernie.serve.api.service import Generation, Service, respond
from paddle_ernie.serve.api.streaming import (
    Events,
    Json,
    TokenCounts,
    head_of,
    version_spans,
)
from paddle_ernie.serve.middleware.access_log import record_of
from paddle_ernie.serve.types import RequestOutput

KIND = "text_completion"


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
        return await respond(answer, generation, stream=bool(request.stream))

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
        head = head_of(self._name, KIND, self._model)
        return {**head, "choices": choices, "usage": self._counts.usage()}

    def _choice(self, index: int, output: RequestOutput) -> Json:
        prompt = self._prompts[index // self._n]
        service, request = self._service, self._request
        with_ids = request.return_token_ids
        return {
            "index": index,
            "text": (prompt.text if request.echo else "") + output.text,
            "prompt_token_ids": list(prompt.ids) if with_ids else None,
            "completion_token_ids": list(output.token_ids) if with_ids else None,
            "prompt_tokens": prompt.text if with_ids else None,
            "completion_tokens": output.text if with_ids else None,
            "arrival_time": None,
            "logprobs": service.logprobs(output, request, service.texts.completion),
            "draft_logprobs": None,
            "prompt_logprobs": service.prompt_logprobs(output, request, prompt),
            "reasoning_content": None,
            "finish_reason": output.finish_reason.value if output.finish_reason else None,
            "tool_calls": None,
            "speculate_metrics": None,
            "version_spans": version_spans(output),
            "routed_experts": service.encode_routes(output, request),
        }

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """The answer as events."""
        events = Events(self._name, KIND, self._model)
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
        service, request = self._service, self._request
        prompt, text = self._prompts[index // self._n], output.text
        if request.echo and index not in self._begun:
            self._begun.add(index)
            text = prompt.text + text
        choice: Json = {"index": index, "text": text, "arrival_time": events.arrival_time()}
        if request.return_token_ids:
            choice["completion_token_ids"] = list(output.token_ids)
            choice["completion_tokens"] = output.text
        return choice | service.what_came(output, request, prompt, service.texts.completion)
