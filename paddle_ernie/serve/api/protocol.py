"""Bodies of requests, as FastDeploy takes them; faults become 400 with the field's name.

Unknown fields are ignored, as FastDeploy and OpenAI do. Fields that would change the answer but
that this server cannot honour are refused rather than ignored. Answers are in responses.py.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from paddle_ernie.serve.engine.control import KvMode, UpdateMode

MAX_SEED = 922_337_203_685_477_580  # FastDeploy's
MAX_CHOICES = 128
MAX_STOPS = 64
MAX_ID_CHARS = 512
MAX_TOKEN_COUNT = 2**31 - 1

UNSUPPORTED = {
    "guided_json": "guided decoding is not available",
    "guided_regex": "guided decoding is not available",
    "guided_choice": "guided decoding is not available",
    "guided_grammar": "guided decoding is not available",
    "structural_tag": "guided decoding is not available",
    "logits_processors_args": "there are no logits processors",
    "mm_hashes": "the model reads text only",
    "suffix": "the model does not fill in",
    "reasoning_max_tokens": "use max_completion_tokens",
    "response_max_tokens": "use max_completion_tokens",
}
"""Fields of FastDeploy that are refused if set."""


# Strict: JSON's true is not the number 1, though Python's is.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Integer = Annotated[int, Field(strict=True)]
TokenId = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKEN_COUNT)]
TokenKey = Annotated[int, Field(ge=0, le=MAX_TOKEN_COUNT)]
"""JSON's keys are text."""
Refused = None
"""The type of fields that must not be set: see UNSUPPORTED."""

Message = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "role": {"type": "string", "examples": ["system", "user", "assistant", "tool"]},
                "content": {"type": ["string", "null"]},
            },
            "required": ["role"],
        }
    ),
]
"""A turn; serve/api/chat_template.py looks into it, templates into all of it."""

Name = Annotated[str, Field(max_length=MAX_ID_CHARS)]


class StreamOptions(BaseModel):
    """When a stream tells token counts."""

    include_usage: bool | None = True
    """One more chunk at the end, without choices."""
    continuous_usage_stats: bool | None = False
    """In every chunk."""


class FunctionDefinition(BaseModel):
    """What a model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolParam(BaseModel):
    """An entry of `tools`; what else it holds reaches the chat template too."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"] = "function"
    function: FunctionDefinition


class ResponseFormat(BaseModel):
    """Only `text`, which is no constraint."""

    type: Literal["text"]


class GenerationRequest(BaseModel):
    """What chats and completions have in common."""

    model: Name | None = "default"
    n: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Name | None = None
    """Becomes part of the id of the request; the scheduler shares the machine between users."""
    request_id: Name | None = None
    metadata: dict[str, Any] | None = None

    max_tokens: Annotated[Integer, Field(ge=1, le=MAX_TOKEN_COUNT)] | None = None
    min_tokens: Annotated[Integer, Field(ge=0, le=MAX_TOKEN_COUNT)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_COUNT)] | None = None
    """0 or -1: all tokens."""
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=1e6)] | None = None
    logit_bias: dict[TokenKey, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[Integer, Field(ge=0, le=MAX_SEED)] | None = None
    """None: drawn. The n-th choice uses a seed derived from it."""
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = False
    include_stop_str_in_output: bool | None = False
    bad_words: list[str] | None = None
    bad_words_token_ids: list[TokenId] | None = None

    prompt_logprobs: Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_COUNT)] | None = None
    temp_scaled_logprobs: bool = False
    top_p_normalized_logprobs: bool = False
    include_logprobs_decode_token: bool | None = True
    """False: tokens are written "token_id:N" instead of as text."""

    return_token_ids: bool | None = None
    return_routed_experts: bool | None = None
    """Not FastDeploy's: the experts each token chose, in the last piece of each choice."""
    pack_routed_experts: bool = False
    """Not FastDeploy's: as few bits per expert as number them."""
    max_streaming_response_tokens: Annotated[Integer, Field(ge=1, le=MAX_TOKEN_COUNT)] | None = None

    response_format: ResponseFormat | None = None
    guided_json: Refused = None
    guided_regex: Refused = None
    guided_choice: Refused = None
    guided_grammar: Refused = None
    logits_processors_args: Refused = None
    mm_hashes: Refused = None

    @model_validator(mode="before")
    @classmethod
    def _check_stream_options(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
            raise ValueError("Stream options can only be defined when `stream=True`.")
        return data

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        """A field that is null or empty asks for nothing."""
        given = [name for name in UNSUPPORTED if name in data] if isinstance(data, dict) else []
        for name in given:
            if name in cls.model_fields and data[name] not in (None, [], {}, ""):
                raise ValueError(f"`{name}` is not supported: {UNSUPPORTED[name]}.")
        return {**data, **dict.fromkeys(given)} if given else data

    @model_validator(mode="after")
    def _check_together(self) -> "GenerationRequest":
        limit = self.token_limit
        if limit is not None and (self.min_tokens or 0) > limit:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, {limit}.")
        return self

    @property
    def token_limit(self) -> int | None:
        """New tokens at most, as asked for."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """None: no log-probabilities; n: also those of the n likeliest; -1: of all."""
        raise NotImplementedError

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; an empty one would stop everything and is left out."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def wants_final_usage(self) -> bool:
        """A last chunk with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Token counts in every chunk."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
                    "max_completion_tokens": 64,
                    "temperature": 0.7,
                },
                {"messages": [{"role": "user", "content": "Hello"}], "stream": True},
            ]
        }
    )

    messages: list[TokenId] | list[Message]
    """Turns, or token ids as they are."""
    tools: list[ToolParam] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    max_completion_tokens: Annotated[Integer, Field(ge=1, le=MAX_TOKEN_COUNT)] | None = None
    """`max_tokens` by its newer name; wins over it."""
    logprobs: bool | None = False
    top_logprobs: Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_COUNT)] | None = None
    """Needed for log-probabilities to come back; 0 is enough for the sampled token's."""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    disable_chat_template: bool | None = False
    """The first message's content is the prompt."""
    prompt_token_ids: list[TokenId] | None = None
    """The prompt as ids; messages are not read."""
    completion_token_ids: list[TokenId] | None = None
    """Put behind the prompt: a reply to go on with."""
    reasoning_max_tokens: Refused = None
    response_max_tokens: Refused = None
    structural_tag: Refused = None

    @model_validator(mode="after")
    def _check_chat(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("when using `top_logprobs`, `logprobs` must be set to true.")
        if not self.messages and not self.prompt_token_ids:
            raise ValueError("messages can not be an empty list, unless prompt_token_ids is passed")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "def main(", "max_tokens": 32, "temperature": 0},
                {"prompt": [[11, 7, 5], [3, 4]], "max_tokens": 8, "return_token_ids": True},
            ]
        }
    )

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]] = ""
    """A text, its ids, or several of either."""
    prompt_token_ids: list[TokenId] | list[list[TokenId]] | None = None
    """Ids; then `prompt` is not read."""
    logprobs: Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_COUNT)] | None = None
    echo: bool | None = False
    best_of: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Refused = None

    @model_validator(mode="after")
    def _check_prompt(self) -> "CompletionRequest":
        if not self.prompt and not self.prompt_token_ids:
            raise ValueError("prompt is empty; expected a text or token ids")
        if self.best_of not in (None, self.n):
            raise ValueError("`best_of` other than n is not supported: ask for n and choose.")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class AbortRequest(BaseModel):
    """POST /v1/abort_requests: all, or those with these ids."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"abort_all": True}]})

    abort_all: bool = False
    req_ids: list[str] | None = None
    """As in the `id` of a response."""

    @model_validator(mode="after")
    def _check_something(self) -> "AbortRequest":
        if not self.abort_all and self.req_ids is None:
            raise ValueError("expected abort_all true, or req_ids")
        return self


class PauseRequest(BaseModel):
    """POST /v1/pause; the body may be left out."""

    mode: UpdateMode = "abort"
    """abort: requests in flight end with finish_reason abort. keep, which is not FastDeploy's: they
    wait for the resume.
    """


class UpdateWeightsRequest(BaseModel):
    """POST /v1/update_weights."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": "12", "mode": "keep"}]})

    version: str | Integer | None = None
    """A folder below the server's weights directory; None: the newest."""
    path: str | None = None
    """A folder below the server's weights directory, by path."""
    mode: UpdateMode | None = None
    """Not FastDeploy's; without it the engine must be paused first. keep: requests in flight go on
    with the new weights; abort: they end.
    """
    kv: KvMode = "keep"
    """Of requests in flight. keep: keys and values stay as the old weights made them; recompute:
    they are computed again with the new ones.
    """
    verify_checksum: bool = False
