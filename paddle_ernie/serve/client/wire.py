"""Between the client's records and the JSON of the HTTP API. No Paddle, no input or output.

    SamplingParams -> fields of a request           body of an answer, chunk of a stream -> records

Reads FastDeploy's answers as well as ours: what only ours have is optional.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from paddle_ernie.serve import routes
from paddle_ernie.serve.client.types import Choice, Piece, Reply, ServerError
from paddle_ernie.serve.types import FinishReason, SamplingParams, VersionSpan

Json = dict[str, Any]
SAME_NAME = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "include_stop_str_in_output",
    "prompt_logprobs",
    "temp_scaled_logprobs",
    "top_p_normalized_logprobs",
)
REASONS = frozenset(reason.value for reason in FinishReason)


def sampling_fields(sampling: SamplingParams) -> Json:
    """What differs from the defaults, and the temperature and seed, which servers choose anew."""
    default = SamplingParams()
    fields: Json = {
        name: getattr(sampling, name)
        for name in SAME_NAME
        if getattr(sampling, name) != getattr(default, name)
    }
    fields |= {"temperature": sampling.temperature, "seed": sampling.seed, "top_p": sampling.top_p}
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sorted(sampling.stop_token_ids)
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.bad_words_token_ids:
        if any(len(word) > 1 for word in sampling.bad_words_token_ids):
            raise ServerError("bad_words_token_ids: the API only takes words of one token")
        fields["bad_words_token_ids"] = [word[0] for word in sampling.bad_words_token_ids]
    if sampling.logprobs is not None:
        # FastDeploy leaves log-probabilities out unless both are there.
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs}
    return fields


def reply(body: Json) -> Reply:
    """The body of a whole answer."""
    if not body.get("choices"):
        raise error_of(200, body, "an answer without choices")
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    first = body["choices"][0]
    ids = (first.get("message") or first).get("prompt_token_ids") or ()
    return Reply(
        id=body["id"],
        prompt_token_ids=tuple(ids),
        choices=tuple(_choice(choice) for choice in body["choices"]),
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )


def _choice(choice: Json) -> Choice:
    message = choice.get("message") or {}
    return Choice(
        **_generated(choice, message),
        tool_calls=tuple(message.get("tool_calls") or ()),
        reasoning=message.get("reasoning_content"),
    )


def pieces(chunk: Json) -> list[Piece]:
    """One per choice of a chunk; FastDeploy's may hold several of the same choice."""
    if "error" in chunk:
        raise error_of(200, chunk, "an error within a stream")
    return [_piece(chunk["id"], choice) for choice in chunk.get("choices") or ()]


def _piece(id_: str, choice: Json) -> Piece:
    delta = choice.get("delta") or {}
    return Piece(id=id_, **_generated(choice, delta))


def _generated(choice: Json, message: Json) -> dict[str, Any]:
    """What whole choices and pieces have in common. `message` holds a chat's text and ids."""
    return {
        "index": choice["index"],
        "text": message.get("content") or choice.get("text") or "",
        "token_ids": _token_ids(message or choice),
        "logprobs": _logprobs(choice.get("logprobs")),
        "finish_reason": _reason(choice.get("finish_reason")),
        "version_spans": _spans(choice),
        "routes": _routes(choice),
    }


def error_of(status: int, body: Any, what: str) -> ServerError:
    """FastDeploy's error object, its `detail`, or whatever came."""
    found = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(found, Mapping):
        message = f"{found.get('message')} ({found.get('type')})"
        return ServerError(f"{what}: HTTP {status}: {message}", status=status,
                           code=found.get("code"))  # fmt: skip
    if isinstance(body, Mapping):
        body = body.get("detail") or body.get("error_message") or found or body
    return ServerError(f"{what}: HTTP {status}: {str(body)[:500]}", status=status)


def _token_ids(place: Json) -> tuple[int, ...]:
    return tuple(place.get("completion_token_ids") or ())


def _logprobs(found: Json | None) -> tuple[float, ...] | None:
    """Chats list an entry per token, completions a list of numbers."""
    if found is None:
        return None
    if found.get("content") is not None:
        return tuple(entry["logprob"] for entry in found["content"])
    numbers: Sequence[float] | None = found.get("token_logprobs")
    return None if numbers is None else tuple(numbers)


def _reason(text: str | None) -> FinishReason | str | None:
    return FinishReason(text) if text in REASONS else text


def _spans(choice: Json) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(span["start"], span["end"], span["version"])
        for span in choice.get("version_spans") or ()
    )


def _routes(choice: Json) -> Any:
    found = choice.get("routed_experts")
    return None if found is None else routes.decode(found)
