"""From an HTTP request to the engine's: ids, sampling, seeds, limits. Called by both handlers.

chat         {id}    chatcmpl-{request_id | user-uuid4 | uuid4}    sequences {id}_0, {id}_1, ...
completion   {id}    cmpl-...
"""

import hashlib
import secrets
import uuid
from collections.abc import Collection
from types import MappingProxyType

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.serve.api.errors import ApiError, ErrorCode
from paddle_ernie.serve.api.protocol import MAX_SEED, GenerationRequest
from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.engine.control import ModelInfo
from paddle_ernie.serve.types import SamplingParams


def response_id(prefix: str, request: GenerationRequest) -> str:
    """FastDeploy's rule, which rollout ids are read back from."""
    if request.request_id:
        given = request.request_id
        return given if given.startswith(prefix) else f"{prefix}-{given}"
    parts = [prefix, *([request.user] if request.user else []), str(uuid.uuid4())]
    return "-".join(parts)


def check_model(name: str | None, settings: ServerSettings) -> None:
    """Only a server with a name of its own minds; `default` is always it."""
    served = settings.served_model_name
    if served is None or name in (None, "default", served):
        return
    raise ApiError(
        f"model {name!r} is not served here; expected {served!r} or 'default'",
        param="model",
        code=ErrorCode.MODEL_NOT_SUPPORT,
    )


def check_length(num_prompt: int, request: GenerationRequest, info: ModelInfo) -> None:
    """Room for the prompt and one new token, or as many as are asked for at least."""
    new = max(1, request.min_tokens or 0)
    if num_prompt + new > info.max_model_len:
        raise ApiError(
            f"Input text is too long: {num_prompt} prompt tokens and at least {new} new; expected "
            f"at most {info.max_model_len} together (max_model_len)",
            param="prompt",
            code=ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        )


def choice_seed(seed: int | None, index: int) -> int:
    """The given seed for choice 0, seeds derived from it for the others; None: drawn."""
    if seed is None:
        return secrets.randbelow(MAX_SEED)
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % MAX_SEED


def sampling_params(
    request: GenerationRequest,
    index: int,
    tokenizer: Tokenizer,
    settings: ServerSettings,
    stop_ids: Collection[int] = (),
) -> SamplingParams:
    """Of choice `index`. `stop_ids`: what also ends a reply, such as the end of a turn."""
    greedy = request.top_p == 0  # nothing but the likeliest token
    stops = set(request.stop_token_ids or ())
    if not request.ignore_eos:
        stops |= set(stop_ids)
    return SamplingParams(
        max_tokens=request.token_limit,
        min_tokens=request.min_tokens or 0,
        temperature=_or(request.temperature, 1.0),
        top_p=1.0 if greedy else _or(request.top_p, 1.0),
        top_k=1 if greedy else max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        seed=choice_seed(request.seed, index),
        stop=request.stops,
        stop_token_ids=frozenset(stops),
        ignore_eos=bool(request.ignore_eos),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        bad_words_token_ids=_bad_words(request, tokenizer),
        logit_bias=MappingProxyType(dict(request.logit_bias or {})),
        logprobs=_count("logprobs", request.num_logprobs, tokenizer, settings),
        prompt_logprobs=_count("prompt_logprobs", request.prompt_logprobs, tokenizer, settings),
        temp_scaled_logprobs=request.temp_scaled_logprobs,
        top_p_normalized_logprobs=request.top_p_normalized_logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _bad_words(request: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word, at the beginning of a text and after a space."""
    spellings = [text for word in request.bad_words or () for text in (word, f" {word}") if word]
    encoded = [tuple(tokenizer.encode(text)) for text in spellings]
    single = [(token,) for token in request.bad_words_token_ids or ()]
    return tuple(dict.fromkeys([*encoded, *single]))


def _count(
    name: str, asked: int | None, tokenizer: Tokenizer, settings: ServerSettings
) -> int | None:
    """How many alternatives per token; ApiError if more than the server gives."""
    if asked is None:
        return None
    if not settings.enable_logprob:
        raise ApiError(f"{name}: the server was started with --no-enable-logprob", param=name)
    most = tokenizer.vocab_size if settings.max_logprobs == -1 else settings.max_logprobs
    count = tokenizer.vocab_size if asked == -1 else asked
    if count > most:
        found = "all (-1)" if asked == -1 else asked
        raise ApiError(f"{name} is {found}; expected at most {most} (--max-logprobs)", param=name)
    return count
