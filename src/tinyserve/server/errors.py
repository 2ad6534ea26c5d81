"""Errors as clients see them: OpenAI's error object, with the right status."""

from __future__ import annotations

import http
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyserve.errors import (
    EngineDeadError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    TinyServeError,
)

MAX_MESSAGE = 2000  # characters


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
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        429: "rate_limit_error",
        503: "service_unavailable_error",
    }
    default = "invalid_request_error" if status < 500 else "server_error"
    kind = kinds.get(status, default)
    if len(message) > MAX_MESSAGE:  # it may quote what the client sent
        message = message[:MAX_MESSAGE] + " ..."
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def failure(error: BaseException) -> HTTPFailure:
    """What a client is told about `error`; of errors that are not ours, nothing."""
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


def status_failure(
    status: int, method: str, path: str, headers: Mapping[str, str] | None = None
) -> HTTPFailure:
    """An error that the framework raised: unknown route, wrong method."""
    told, message = headers or {}, http.HTTPStatus(status).phrase
    if status == 404:
        message = f"there is nothing at {path[:200]}; /docs lists the endpoints"
    elif status == 405:
        message = f"{method} is not allowed at {path[:200]}: {told.get('Allow', 'others')}"
    return HTTPFailure(status, error_object(status, message), told)
