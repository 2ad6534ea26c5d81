"""Fields that the body of a chat API does not declare: they go on to the chat request, which may
know them, or are refused. And back: the chat request's fields by the API's own names, for errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from pydantic import BaseModel

from tinyserve.errors import RequestError
from tinyserve.server.said_once import SaidOnce


def passed_on(
    body: BaseModel, said_once: SaidOnce, skipped: Set[str], harmless: Set[str] = frozenset()
) -> dict[str, Any]:
    """The undeclared fields that the chat request may know.

    Left out are those in `skipped`, which have another name or no place there, with a line in the
    log; and, without one, those in `harmless`.
    """
    extra = body.model_extra or {}
    said_once.unknown_fields(skipped & extra.keys())
    return {k: v for k, v in extra.items() if k not in skipped and k not in harmless}


def own_names(body: BaseModel, names: Mapping[str, str]) -> dict[str, str]:
    """`names` (ours -> the API's), for `errors.renamed`, without fields that the client has sent by
    our name.
    """
    return {name: own for name, own in names.items() if getattr(body, name, None) is None}


# Fields that ask for something which only answers of the chat and completion APIs can show.
_UNSHOWN = ("prompt_logprobs", "echo", "return_token_ids", "return_tokens_as_token_ids")


def refuse_unshown(body: BaseModel, *more: str) -> None:
    """Raise RequestError where an API of single answers is asked for what it cannot show.

    `more` are further fields that it has no place for.
    """
    extra = body.model_extra or {}
    if extra.get("n") not in (None, 1):
        raise RequestError("n: there is one answer only", param="n", code="unsupported_parameter")
    for name in (*_UNSHOWN, *more):
        if extra.get(name) is not None and extra[name] is not False:
            raise RequestError(
                f"{name}: this API's answers have no place for it",
                param=name,
                code="unsupported_parameter",
            )
