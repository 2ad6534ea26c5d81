"""`ResponsesRequest`: the body of `POST /v1/responses`, and what of it this server cannot do.

Following the OpenAI API reference. The server keeps nothing between requests, so whatever refers to
something kept is refused; `store` is accepted and has no effect, since most clients send it. What
has a form of its own is read by `input.py` and `tools.py`.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from tinyserve.errors import RequestError
from tinyserve.server.dialects.extra_fields import refuse_unshown
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.extensions import FAST, Extensions, at_most, string_or

# Members of `include`.
LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"

_SEAL = "tinyserve:"


class ResponsesRequest(Extensions):
    """`POST /v1/responses`. Unknown fields go on to the chat request, which may know them."""

    model: str | None = None
    input: Annotated[str | list[Any] | None, string_or(list, "a list of items")] = None
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Annotated[str | dict[str, Any] | None, string_or(dict, "an object")] = None
    prompt: dict[str, Any] | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: Annotated[list[str], FAST] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    tools: list[Any] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, string_or(dict, "an object")] = None
    parallel_tool_calls: bool | None = None

    metadata: Annotated[dict[str, str] | None, at_most(1000)] = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def seals_reasoning(self) -> bool:
        return SEALED_REASONING in (self.include or ())


# Fields of a chat request that this API names otherwise, or does not have.
NOT_PASSED_ON = frozenset({"messages", "logprobs", "max_tokens", "max_completion_tokens"})


def sealed(thoughts: str) -> str:
    """Thinking as `encrypted_content`: the only form in which some clients send it back to a server
    that stores nothing. There is no secret in it: the client has the text as well.
    """
    return _SEAL + base64.b64encode(thoughts.encode()).decode()


def unsealed(content: str) -> str:
    """The thinking that `sealed` has wrapped; empty for what other servers have made."""
    if not content.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return ""


def refuse_unserved(body: ResponsesRequest) -> None:
    """Raise RequestError where a field asks for what this server does not do."""
    kept = "this server keeps nothing between requests; send the whole conversation in `input`"
    for name, is_set, reason in (
        ("previous_response_id", body.previous_response_id is not None, kept),
        ("conversation", body.conversation is not None, kept),
        ("prompt", body.prompt is not None, "stored prompts are not supported"),
        ("background", body.background, "responses in the background are not supported"),
    ):
        if is_set:
            raise RequestError(f"{name}: {reason}", param=name, code="unsupported_parameter")
    refuse_unshown(body)
    for name in ("max_tokens", "max_completion_tokens"):
        if (body.model_extra or {}).get(name) is not None:
            raise RequestError(
                f"{name}: this API calls it max_output_tokens",
                param=name,
                code="unsupported_parameter",
            )
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise RequestError(
            f"max_output_tokens must be at least 1, got {body.max_output_tokens}",
            param="max_output_tokens",
        )


def response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    """`text.format` as the chat API's `response_format`; None for plain text."""
    node = Node(body.text or {}, "text").get("format")
    if node.value is None:
        return None
    kind = node.get("type").one_of(("text", "json_object", "json_schema"))
    if kind == "text":
        return None
    if body.response_format is not None:
        raise node.fault("send either this or response_format")
    if kind == "json_object":
        return {"type": "json_object"}
    schema = node.get("schema").object()
    named: dict[str, Any] = {"name": node.get("name").text_or("response"), "schema": schema}
    if node.get("strict").value is not None:
        named["strict"] = node.get("strict").flag_or(False)
    return {"type": "json_schema", "json_schema": named}
