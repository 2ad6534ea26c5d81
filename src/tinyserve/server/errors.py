"""Errors as clients see them, with the right status: OpenAI's error object, and Anthropic's on the
paths that speak its protocol.
"""

from __future__ import annotations

import contextlib
import http
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.errors import (
    EngineDeadError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    TinyServeError,
)
from tinyserve.settings import did_you_mean

MAX_MESSAGE = 2000  # characters
_OPENAI_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_MESSAGES_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_MESSAGES_CODES = ("thread_unsupported_request",)  # which clients of the Messages API act on


@dataclass(frozen=True)
class HTTPFailure:
    """Status, body and headers of an error response."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class HTTPError(TinyServeError):
    """An error of HTTP itself (wrong key, wrong type, too large), before a request exists."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def error_object(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """{"error": {...}}; the type follows from the status."""
    default = "invalid_request_error" if status < 500 else "server_error"
    kind = _OPENAI_KINDS.get(status, default)
    if len(message) > MAX_MESSAGE:  # it may quote what the client sent
        message = message[:MAX_MESSAGE] + " ..."
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Lets errors name fields as the client has sent them. `names`: ours -> the client's."""
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        head = next((n for n in names if param == n or param.startswith((f"{n}.", f"{n}["))), None)
        if head is not None:
            error.param = names[head] + param[len(head) :]
            if error.message.startswith(head):
                error.message = names[head] + error.message[len(head) :]
        raise


def failure(error: BaseException, path: str) -> HTTPFailure:
    """What a client of `path` is told about `error`; of errors that are not ours, nothing."""
    return _in_dialect(_openai_failure(error), path)


def status_failure(
    status: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    known: Sequence[str] = (),
) -> HTTPFailure:
    """An error that the framework raised: unknown route, wrong method. `known`: paths there are."""
    headers, message = headers or {}, http.HTTPStatus(status).phrase
    if status == 404:
        # Most often a client's base URL lacks /v1, or has it twice.
        hint = did_you_mean(path[:200], known, cutoff=0.7)
        message = f"there is nothing at {path[:200]}{hint}; /docs lists the endpoints"
    elif status == 405:
        message = f"{method} is not allowed at {path[:200]}: {headers.get('Allow', 'others')}"
    return _in_dialect(HTTPFailure(status, error_object(status, message), headers), path)


def is_news(error: BaseException, told: HTTPFailure) -> bool:
    """Whether the log has to tell of it. That the engine died or the server ends it tells once, not
    for every request.
    """
    return told.status >= 500 and not isinstance(error, EngineDeadError)


def speaks_messages(path: str) -> bool:
    """Whether clients of `path` speak Anthropic's Messages API."""
    return re.search(r"/v1/messages(/|$)", path) is not None


def _openai_failure(error: BaseException) -> HTTPFailure:
    if isinstance(error, RequestError):
        body = error_object(error.status, error.message, param=error.param, code=error.code)
        if error.status == 404:
            body["error"]["type"] = "invalid_request_error"
        return HTTPFailure(error.status, body)
    if isinstance(error, QueueFullError):
        body = error_object(429, str(error), code="queue_full")
        return HTTPFailure(429, body, {"Retry-After": str(max(1, round(error.retry_after)))})
    if isinstance(error, RequestTimeoutError):
        return HTTPFailure(408, error_object(408, str(error), code="request_timeout"))
    if isinstance(error, EngineDeadError):
        return HTTPFailure(503, error_object(503, str(error), code="engine_unavailable"))
    if isinstance(error, HTTPError):
        return HTTPFailure(error.status, error_object(error.status, str(error), code=error.code))
    if isinstance(error, TinyServeError):
        return HTTPFailure(500, error_object(500, str(error)))
    return HTTPFailure(500, error_object(500, "internal server error"))


def _in_dialect(openai: HTTPFailure, path: str) -> HTTPFailure:
    """The error as clients of `path` read errors."""
    if not speaks_messages(path):
        return openai
    return HTTPFailure(openai.status, _messages_error(openai), openai.headers)


def _messages_error(openai: HTTPFailure) -> dict[str, Any]:
    """{"type": "error", "error": {...}}; the type follows from the status.

    There is no place for the field at fault, so that the message has to name it.
    """
    default = "invalid_request_error" if openai.status < 500 else "api_error"
    kind = _MESSAGES_KINDS.get(openai.status, default)
    error = openai.body["error"]
    message, param = error["message"], error["param"]
    if param and param not in message:
        message = f"{param}: {message}"
    body = {"type": kind, "message": message}
    if error["code"] in _MESSAGES_CODES:
        body["details"] = {"error_code": error["code"]}
    return {"type": "error", "error": body}
