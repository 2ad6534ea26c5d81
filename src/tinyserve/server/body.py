"""From the bytes of a request to its typed body; what does not fit is refused by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from tinyserve.errors import RequestError
from tinyserve.server.foreign_fields import refuse_foreign
from tinyserve.server.http import body_bytes
from tinyserve.server.protocol import ChatRequest, GenerationRequest

Body = TypeVar("Body", bound=BaseModel)

_UNION_TAGS = {"str", "int", "float", "bool", "dict", "list"}
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body of an HTTP request. Raises what `body_bytes` raises, and RequestError naming the
    first field at fault.
    """
    body = await body_bytes(request, request.app.state.tinyserve.config.max_body_size)
    try:
        read = kind.model_validate_json(body)
    except ValidationError as error:
        raise _request_error(error, body) from None
    if isinstance(read, GenerationRequest):
        refuse_foreign(read.model_extra or {})
    return read


def as_chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The ChatRequest that another protocol's body stands for, checked as if it had come itself.
    Raises RequestError.
    """
    try:
        request = ChatRequest.model_validate(dict(fields))
    except ValidationError as error:
        raise _request_error(error) from None
    refuse_foreign(request.model_extra or {})
    return request


def _request_error(error: ValidationError, body: bytes = b"") -> RequestError:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # For a union there is an error per member. The client most likely meant the member in which
    # validation got deepest.
    same_field = [e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same_field, key=lambda e: len(e["loc"]))
    path = [p for p in first["loc"] if not _is_union_tag(p)]
    param = _spell(path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        reason = message.removeprefix("Invalid JSON: ")
        if not body.strip():
            reason = "it is empty"
        elif body.startswith(_BYTE_ORDER_MARKS):
            reason = "it begins with a byte order mark; send UTF-8 without one"
        return RequestError(f"The request body is not valid JSON: {reason}", code="invalid_json")
    if not path:
        return RequestError("The request body must be a JSON object")
    return RequestError(f"{param}: {message}", param=param, code="invalid_type")


def _spell(path: Sequence[int | str]) -> str:
    """messages[0].content"""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part in _UNION_TAGS or "[" in part)
