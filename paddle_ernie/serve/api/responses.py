"""Bodies of answers, as FastDeploy writes them: what the OpenAPI document shows and tests check.

Handlers build the same shapes as plain dictionaries, because a pydantic object per token would cost
more than the token. Whole answers carry every key, null where there is nothing; chunks of a stream
only those that are set.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "tool_calls", "recover_stop", "abort"]


class Record(BaseModel):
    """A key that is not listed is a mistake."""

    model_config = ConfigDict(extra="forbid")


class ErrorInfo(Record):
    """What went wrong."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


class ErrorResponse(Record):
    """The body of every status that is not 200."""

    error: ErrorInfo


class PromptTokensDetails(Record):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None
    """From the prefix cache."""
    image_tokens: int | None = None
    video_tokens: int | None = None


class CompletionTokensDetails(Record):
    """What the new tokens are."""

    reasoning_tokens: int | None = None
    image_tokens: int | None = None


class Usage(Record):
    """Token counts of all choices together; the prompt counts once per prompt."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class LogprobEntry(Record):
    """One token; `token` is "bytes:\\xNN.." where it is no whole character."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list["LogprobEntry"] | None = None


class Logprobs(Record):
    """Of a chat's reply."""

    content: list[LogprobEntry] | None = None
    refusal: str | None = None


class CompletionLogprobs(Record):
    """Of a completion."""

    tokens: list[str] | None = None
    token_logprobs: list[float] | None = None
    top_logprobs: list[dict[str, float]] | None = None
    text_offset: list[int] | None = None


class PromptLogprob(Record):
    """One candidate at a position of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class VersionSpan(Record):
    """New tokens [start, end) came from the weights of `version`."""

    start: int
    end: int
    version: int


class RoutedExperts(Record):
    """Chosen experts, [tokens, moe layers, k]: base64 of a C-ordered little-endian array."""

    data: str
    shape: list[int]
    dtype: str
    bits: int | None = None


class FunctionCall(Record):
    """`arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Record):
    """A call the model asks for."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class DeltaToolCall(ToolCall):
    """A whole call in a stream."""

    index: int


class Choice(Record):
    """What all choices share."""

    index: int
    finish_reason: FinishReason | None = None
    draft_logprobs: None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    speculate_metrics: None = None
    version_spans: list[VersionSpan] | None = None
    """Not FastDeploy's. In the last piece."""
    routed_experts: RoutedExperts | None = None
    """Not FastDeploy's. In the last piece, if asked for."""


class ChatMessage(Record):
    """A reply."""

    role: Literal["assistant"]
    content: str | None = None
    multimodal_content: None = None
    reasoning_content: str | None = None
    audio_content: None = None
    tool_calls: list[ToolCall] | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    """The prompt as rendered."""
    completion_tokens: str | None = None
    """The reply as generated, with tags."""


class ChatChoice(Choice):
    """One reply."""

    message: ChatMessage
    logprobs: Logprobs | None = None


class ChatCompletion(Record):
    """POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(Record):
    """What a reply grew by."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaToolCall] | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None


class ChatChunkChoice(Choice):
    """Growth of one reply."""

    delta: Delta
    logprobs: Logprobs | None = None
    arrival_time: float | None = None
    """Seconds since the request came in."""


class ChatChunk(Record):
    """One `data:` line of a chat's stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionChoice(Choice):
    """One completion, whole or in a stream what it grew by."""

    text: str
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    prompt_tokens: str | None = None
    completion_tokens: str | None = None
    arrival_time: float | None = None
    logprobs: CompletionLogprobs | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Completion(Record):
    """POST /v1/completions; also one `data:` line of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelPermission(Record):
    """FastDeploy's constants."""

    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: str | None
    is_blocking: bool


class ModelCard(Record):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["FastDeploy"]
    root: str | None
    parent: str | None
    max_model_len: int | None
    permission: list[ModelPermission]


class ModelList(Record):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class ControlResponse(Record):
    """Control calls: `status` is "success", or "error" with another HTTP status than 200."""

    request_id: str
    status: Literal["success", "error"]
    error_message: str | None
    result: Any
