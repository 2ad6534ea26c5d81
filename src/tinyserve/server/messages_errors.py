"""Errors in Anthropic's shape, on the paths that speak its protocol."""

from __future__ import annotations

import re
from typing import Any

from tinyserve.errors import ContextLengthError
from tinyserve.server.errors import HTTPFailure

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_CODES = ("thread_unsupported_request",)  # of this API, which its clients act on


def error_body(told: HTTPFailure) -> dict[str, Any]:
    """{"type": "error", "error": {...}}; the type follows from the status.

    There is no place for the field at fault, so that the message has to name it.
    """
    default = "invalid_request_error" if told.status < 500 else "api_error"
    kind = _KINDS.get(told.status, default)
    error = told.body["error"]
    message, param = error["message"], error.get("param")
    if param and param not in message:
        message = f"{param}: {message}"
    body = {"type": kind, "message": message}
    if error.get("code") in _CODES:
        body["details"] = {"error_code": error["code"]}
    return {"type": "error", "error": body}


def in_dialect(told: HTTPFailure, path: str) -> HTTPFailure:
    """`told` as the clients of `path` read errors."""
    if not re.search(r"/v1/messages(/|$)", path):
        return told
    return HTTPFailure(told.status, error_body(told), told.headers)


def prompt_too_long(num_tokens: int, limit: int) -> ContextLengthError:
    """In the words that make Claude Code shorten its conversation."""
    return ContextLengthError(f"prompt is too long: {num_tokens} tokens > {limit - 1} maximum")
