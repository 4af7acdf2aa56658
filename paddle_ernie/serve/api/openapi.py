"""What the OpenAPI document says beside the requests: answers, errors, the page's own text."""

from typing import Any

from fastapi import FastAPI

from paddle_ernie.serve.api.responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    ControlResponse,
    ErrorResponse,
)

Responses = dict[int | str, dict[str, Any]]

DESCRIPTION = """\
Inference with FastDeploy's API, which is OpenAI's with token ids, log-probabilities of the policy
and control over the weights. Streams are server-sent events, the last one `data: [DONE]`.
"""

TAGS = [
    {"name": "generation", "description": "Replies and continuations."},
    {"name": "control", "description": "Weights, pauses, aborts: for trainers, not for users."},
    {"name": "observation", "description": "What is served, and whether it is well."},
]

ERRORS: Responses = {
    400: {"model": ErrorResponse, "description": "The request cannot be served as it is"},
    413: {"model": ErrorResponse, "description": "The body is too large"},
    429: {"description": "Too many requests at once; send it again later"},
    500: {"model": ErrorResponse, "description": "A fault of the server"},
    503: {"model": ErrorResponse, "description": "Paused or shutting down; send it again later"},
    504: {"model": ErrorResponse, "description": "The request took too long"},
}


def generation_responses(answer: type, chunk: type) -> Responses:
    """A whole answer or events."""
    events = {
        "schema": {"type": "string", "description": f"Each event's data is a {chunk.__name__}"},
        "example": 'data: {"id": "...", "choices": [...]}\n\ndata: [DONE]\n\n',
    }
    found = {"model": answer, "description": "The answer, or with `stream` its events"}
    return {200: {**found, "content": {"text/event-stream": events}}, **ERRORS}


def install(app: FastAPI) -> None:
    """Complete the document: events have a schema, and there is no 422."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            schemas = document["components"]["schemas"]
            chunk = ChatChunk.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(chunk.pop("$defs"))
            schemas["ChatChunk"] = chunk
            for operations in document["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]  FastAPI's way to extend it


CHAT_RESPONSES = generation_responses(ChatCompletion, ChatChunk)
COMPLETION_RESPONSES = generation_responses(Completion, Completion)
CONTROL_RESPONSES: Responses = {
    200: {"model": ControlResponse, "description": "Done"},
    400: {"model": ErrorResponse | ControlResponse, "description": "The call is wrong"},
    500: {"model": ControlResponse, "description": "Not done; what was served before still is"},
}
