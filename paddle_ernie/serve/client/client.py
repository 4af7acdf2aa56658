"""Client of the rollout server's HTTP API, ours or FastDeploy's. No Paddle. The RL system uses it.

    async with RolloutClient("http://127.0.0.1:8188") as client:
        reply = await client.generate(prompt_ids, SamplingParams(max_tokens=64, logprobs=0))
        reply.choice.token_ids, reply.choice.logprobs, reply.choice.version_spans
        await client.update_weights(version="12", mode="keep")

Promises: token ids go in and come out as they are, never as text that is tokenised again. A request
that meets a paused, full, starting or restarting server is sent again for a limited time. One that
the server ended early is returned with finish reason ABORT: what was generated is data.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import httpx

from paddle_ernie.serve.client.types import Piece, Reply, Retry, ServerError
from paddle_ernie.serve.client.wire import Json, error_of, pieces, reply, sampling_fields
from paddle_ernie.serve.types import SamplingParams

CHAT = "/v1/chat/completions"
CONNECT_SECONDS = 10.0
BUSY = frozenset({304, 429, 502, 503, 504})
"""304: FastDeploy's weights are put away."""
GIVE_UP = (httpx.ReadTimeout, httpx.WriteTimeout)
"""The server has the request and may still work on it: a second one would be twice the work."""
PAUSED = "is paused"
"""FastDeploy answers 500 while it is paused; only its message says why."""
EVENT = "data:"
DONE = "[DONE]"


class RolloutClient:
    """Use it as a context, or call `close`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model: str = "default",
        timeout_s: float = 600.0,
        retry: Retry | None = None,
        max_connections: int = 1024,
    ) -> None:
        """`timeout_s`: longest silence of a request that was accepted."""
        self.base_url, self.model, self._retry = base_url, model, retry or Retry()
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=max_connections),
            trust_env=False,  # a rollout server is never behind the proxy of a workstation
        )

    async def __aenter__(self) -> "RolloutClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, **fields: Any
    ) -> Reply:
        """Continue token ids. `fields` as in `chat`."""
        return await self.chat([], sampling, prompt_token_ids=list(prompt_ids), **fields)

    async def chat(
        self,
        messages: Sequence[Json],
        sampling: SamplingParams,
        *,
        routes: bool = False,
        **fields: Any,
    ) -> Reply:
        """Answer messages. `routes`: return the chosen experts; `fields`: others of the API, such
        as n, user (FastDeploy's rollout id), tools, chat_template_kwargs.
        """
        body = self._body(messages, sampling, routes, fields)
        return reply(await self._post(CHAT, body))

    async def stream(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routes: bool = False,
        **fields: Any,
    ) -> AsyncIterator[Piece]:
        """Pieces as they come. Leaving the loop ends the request; close the generator then.

        Sent again only until the first byte came.
        """
        fields = {"prompt_token_ids": list(prompt_ids), "stream": True, **fields}
        body = self._body([], sampling, routes, fields)
        response = await self._send("POST", CHAT, json=body, stream=True)
        if response.status_code != 200:
            raise error_of(response.status_code, _json(response), CHAT)
        try:
            async with aclosing(_events(response)) as events:
                async for event in events:
                    for piece in pieces(event):
                        yield piece
        finally:
            await response.aclose()

    async def abort(self, ids: Sequence[str] | None = None) -> None:
        """End requests by the ids of their replies or pieces; None: all."""
        body = {"abort_all": True} if ids is None else {"req_ids": list(ids)}
        await self._post("/v1/abort_requests", body)

    async def pause(self) -> None:
        """No tokens until `resume`; requests in flight end with ABORT or an error."""
        await self._control("/v1/pause")

    async def resume(self) -> None:
        """Go on."""
        await self._control("/v1/resume")

    async def is_paused(self) -> bool:
        """Whether it is."""
        response = await self._send("GET", "/v1/is_paused")
        return bool(_result(response, "/v1/is_paused")["is_paused"])

    async def sleep(self, tags: Sequence[str] = ("weight", "kv_cache")) -> None:
        """Pause, and put these away."""
        await self._control("/v1/sleep", params={"tags": ",".join(tags)})

    async def wakeup(self, tags: Sequence[str] = ("weight", "kv_cache")) -> None:
        """Bring these back, and go on."""
        await self._control("/v1/wakeup", params={"tags": ",".join(tags)})

    async def update_weights(
        self,
        version: str | int | None = None,
        *,
        path: str | None = None,
        mode: Literal["keep", "abort"] | None = None,
        kv: Literal["keep", "recompute"] | None = None,
        verify_checksum: bool = False,
    ) -> Any:
        """Serve other weights; returns what the server says of them.

        FastDeploy must be paused before, and ours as well unless a `mode` is given.
        """
        body = {"version": version, "path": path, "mode": mode, "kv": kv}
        body = {name: value for name, value in body.items() if value is not None}
        return await self._control(
            "/v1/update_weights", json={**body, "verify_checksum": verify_checksum}
        )

    async def healthy(self) -> bool:
        """Whether it answers and can serve; never waits for long."""
        try:
            return (await self._http.get("/health", timeout=CONNECT_SECONDS)).status_code == 200
        except httpx.TransportError:
            return False

    async def wait_until_healthy(self, seconds: float) -> None:
        """Until it serves; ServerError after `seconds`."""
        end = time.monotonic() + seconds
        while not await self.healthy():
            if time.monotonic() > end:
                raise ServerError(f"{self.base_url}: not healthy after {seconds:g} s")
            await asyncio.sleep(self._retry.first_s)

    async def models(self) -> list[Json]:
        """What /v1/models lists."""
        response = await self._send("GET", "/v1/models")
        return list(_success(response, "/v1/models")["data"])

    def _body(
        self, messages: Sequence[Json], sampling: SamplingParams, routes: bool, fields: Json
    ) -> Json:
        body = {"model": self.model, "messages": list(messages), "return_token_ids": True}
        if routes:
            body["return_routed_experts"] = True
        return {**body, **sampling_fields(sampling), **fields}

    async def _post(self, path: str, body: Json) -> Any:
        return _success(await self._send("POST", path, json=body), path)

    async def _control(self, path: str, **options: Any) -> Any:
        return _result(await self._send("POST", path, **options), path)

    async def _send(
        self, method: str, path: str, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """A response with a status that is no reason to wait, its body read unless it streams."""
        wait, end = self._retry.first_s, time.monotonic() + self._retry.total_s
        while True:
            asked = None
            try:
                request = self._http.build_request(method, path, **options)
                response = await self._http.send(request, stream=True)
                if response.status_code == 200 and stream:
                    return response
                await response.aread()
                await response.aclose()
                if not _may_wait(response):
                    return response
                problem = error_of(response.status_code, _json(response), f"{method} {path}")
                asked = response.headers.get("Retry-After")
            except httpx.TransportError as error:
                problem = ServerError(f"{method} {self.base_url}{path}: {_text(error)}")
                if isinstance(error, GIVE_UP):
                    raise problem from error
            pause = float(asked) if asked and asked.isdigit() else wait
            if time.monotonic() + pause > end:
                raise problem
            await asyncio.sleep(pause)
            wait = min(2 * wait, self._retry.most_s)


def _may_wait(response: httpx.Response) -> bool:
    """Whether the same request may succeed later."""
    if response.status_code in BUSY:
        return True
    return response.status_code == 500 and PAUSED in response.text


def _success(response: httpx.Response, path: str) -> Any:
    if response.status_code != 200:
        raise error_of(response.status_code, _json(response), path)
    return _json(response)


def _result(response: httpx.Response, path: str) -> Any:
    """The payload of a control call; anything but success is a failure."""
    body = _success(response, path)
    if not isinstance(body, dict) or body.get("status", "success") != "success":
        raise error_of(response.status_code, body, path)
    return body.get("result")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except json.JSONDecodeError:
        return response.text


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _events(response: httpx.Response) -> AsyncIterator[Json]:
    """The JSON of each event; a stream that ends without its last line was cut."""
    try:
        async for line in response.aiter_lines():
            if not line.startswith(EVENT):
                continue
            text = line[len(EVENT) :].strip()
            if text == DONE:
                return
            yield json.loads(text)
    except httpx.TransportError as error:
        raise ServerError(f"{response.url}: the stream was cut: {_text(error)}") from error
    raise ServerError(f"{response.url}: the stream ended without {DONE}")
