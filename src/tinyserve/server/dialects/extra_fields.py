"""Fields of a body that its API does not have: passed on to the chat request, or refused; and
those of the chat request by the names that the API's clients know.
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
    """Those that the chat request may know.

    The `skipped` have another name or no place there; unless `harmless`, they are logged once.
    """
    extra = body.model_extra or {}
    said_once.unknown_fields(skipped & extra.keys())
    return {k: v for k, v in extra.items() if k not in skipped and k not in harmless}


def own_names(body: BaseModel, names: Mapping[str, str]) -> dict[str, str]:
    """`names` (ours -> the API's), for `errors.renamed`, without those that the client itself has
    used.
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
