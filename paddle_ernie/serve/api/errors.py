"""Errors of the HTTP API: FastDeploy's bodies, and which HTTP status each kind has.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

Handlers raise ApiError; `install` turns it, validation errors and whatever else escapes into such a
body. One difference from FastDeploy, which answers 500 to everything its handlers refuse: what the
caller did wrong is 400 here, so that clients do not repeat it.
"""

from enum import Enum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paddle_ernie.utils.errors import PaddleErnieError

RETRY_SECONDS = "1"  # a weight update on one machine is done within about that
UNION_TAGS = frozenset({"str", "int", "float", "bool", "list", "dict"})
MAX_MESSAGE_CHARS = 2000  # messages quote what was sent, which may be megabytes


class ErrorType(str, Enum):
    """FastDeploy's `type`."""

    INVALID_REQUEST = "invalid_request_error"
    TIMEOUT = "timeout_error"
    SERVER = "server_error"
    INTERNAL = "internal_error"


class ErrorCode(str, Enum):
    """FastDeploy's `code`."""

    INVALID_VALUE = "invalid_value"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_SUPPORT = "model_not_support"
    TIMEOUT = "timeout"
    CONNECTION_ERROR = "connection_error"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    INTERNAL_ERROR = "internal_error"


class ApiError(PaddleErnieError):
    """A request ends with this status and body."""

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        kind: ErrorType = ErrorType.INVALID_REQUEST,
        param: str | None = None,
        code: ErrorCode | None = ErrorCode.INVALID_VALUE,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code = int(status), kind, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object to send."""
        return error_body(str(self), self.kind, self.param, self.code)

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` if the same request may succeed later."""
        busy = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
        return {"Retry-After": RETRY_SECONDS} if self.status in busy else {}


def paused_error() -> ApiError:
    """For requests that come in, or are ended, while the engine is paused: to be sent again."""
    return ApiError(
        "Request is aborted since LLM Engine is paused.",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        kind=ErrorType.SERVER,
        code=ErrorCode.CONNECTION_ERROR,
    )


def asleep_error() -> ApiError:
    """FastDeploy's answer while a server that loads weights dynamically holds none."""
    return ApiError("Worker Service Not Healthy", status=HTTPStatus.NOT_MODIFIED)


def full_error(message: str) -> ApiError:
    """As many requests wait as may: to be sent again."""
    return ApiError(message, status=HTTPStatus.TOO_MANY_REQUESTS, kind=ErrorType.SERVER, code=None)


def internal_error(message: str) -> ApiError:
    """The engine could not go on with a request."""
    return ApiError(
        message,
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        kind=ErrorType.INTERNAL,
        code=ErrorCode.INTERNAL_ERROR,
    )


def error_body(
    message: str, kind: ErrorType, param: str | None = None, code: ErrorCode | None = None
) -> dict[str, Any]:
    """FastDeploy's error object."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]} [...]"
    return {
        "error": {
            "message": message,
            "type": kind.value,
            "param": param,
            "code": code.value if code else None,
        }
    }


def install(app: FastAPI) -> None:
    """Register the handlers."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if error.status == HTTPStatus.NOT_MODIFIED:  # HTTP allows it no body
        return Response(status_code=error.status)
    return JSONResponse(error.body, error.status, headers=error.headers)


async def _validation_error(request: Request, error: Exception) -> Response:
    """The first fault, as FastDeploy reports it: `param` is the field's own name."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    names = [part for part in first["loc"][1:] if _is_field(part)]
    param = str(names[-1]) if names else None
    missing = param == "messages"
    code = ErrorCode.MISSING_REQUIRED_PARAMETER if missing else ErrorCode.INVALID_VALUE
    message = first["msg"].removeprefix("Value error, ")
    body = error_body(message, ErrorType.INVALID_REQUEST, param, code)
    return JSONResponse(body, HTTPStatus.BAD_REQUEST)


def _is_field(part: Any) -> bool:
    """A union's faults also name the alternative that was tried: ("body", "stop", "str")."""
    return isinstance(part, str) and part.isidentifier() and part not in UNION_TAGS


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, bodies that are no JSON."""
    assert isinstance(error, HTTPException)
    body = error_body(str(error.detail), ErrorType.INVALID_REQUEST, None, ErrorCode.INVALID_VALUE)
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    # The server logs the traceback: Starlette raises it again once the answer is out.
    return JSONResponse(internal_error(f"{type(error).__name__}: {error}").body, 500)
