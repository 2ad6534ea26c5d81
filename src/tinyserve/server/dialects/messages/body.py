"""`MessagesRequest`: the body of `POST /v1/messages`, and the chat request that it stands for.

Following Anthropic's API reference. `cache_control`, betas and whatever else concerns a hosted
service are ignored: prefixes are cached by themselves. The conversation is read by `input.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from tinyserve.errors import RequestError
from tinyserve.server.dialects.extra_fields import refuse_unshown
from tinyserve.server.dialects.function_tool import function_tool
from tinyserve.server.dialects.json_node import Node
from tinyserve.server.extensions import FAST, Extensions, string_or

# Documented range of this API's temperature, narrower than OpenAI's; `check` enforces it.
_TEMPERATURE: dict[str, Any] = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]
}


class CountRequest(BaseModel):
    """`POST /v1/messages/count_tokens`: the fields of a request that decide its prompt."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = None
    messages: list[Any]
    system: Annotated[str | list[Any] | None, string_or(list, "a list of content blocks")] = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # what output_config.format was called in the beta
    thread: dict[str, Any] | None = None


class MessagesRequest(CountRequest, Extensions):
    """`POST /v1/messages`. Unknown fields go on to the chat request, which may know them."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: Annotated[list[str], FAST] | None = None
    temperature: Annotated[float | None, WithJsonSchema(_TEMPERATURE)] = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def user_id(self) -> str | None:
        """On whose behalf the client asks: for fair scheduling, not for the model."""
        return Node(self.metadata or {}, "metadata").get("user_id").text_or("") or None


# Fields of a chat request that this API names otherwise, or does not have.
NOT_PASSED_ON = frozenset(
    {
        "max_completion_tokens", "stream_options", "continue_final_message",
        "add_generation_prompt", "parallel_tool_calls", "reasoning_effort", "user", "functions",
        "function_call",
    }
)  # fmt: skip

# Fields of Anthropic's API that mean nothing here.
HARMLESS = frozenset(
    {"betas", "cache_control", "container", "context_management", "diagnostics", "inference_geo",
     "mcp_servers", "speed"}
)  # fmt: skip


def check(body: MessagesRequest) -> None:
    """Raise RequestError where a number is out of this API's range."""
    if body.max_tokens < 0:
        raise RequestError(
            f"max_tokens must be at least 0, got {body.max_tokens}", param="max_tokens"
        )
    if body.temperature is not None and not 0 <= body.temperature <= 1:
        raise RequestError(
            f"temperature must be between 0 and 1, got {body.temperature:g}", param="temperature"
        )
    if body.stop is not None and body.stop_sequences is not None:
        raise RequestError("stop: send either stop_sequences or stop", param="stop")
    refuse_unshown(body, "logprobs", "top_logprobs")


def refuse_threads(body: CountRequest) -> None:
    """Raise RequestError where the client wants the server to keep the conversation: its next turns
    would come without the ones before. The error's code tells its tool runner to send all of them.
    """
    if body.thread is not None:
        raise RequestError(
            "thread: this server keeps nothing between requests; send the whole conversation in "
            "`messages`",
            param="thread",
            code="thread_unsupported_request",
        )


def read_tools(value: Iterable[Any] | None) -> tuple[list[dict[str, Any]], set[str]]:
    """The chat request's tools, and the types of those left out, which only Anthropic could run."""
    functions: list[dict[str, Any]] = []
    left_out: set[str] = set()
    names: set[str] = set()
    for node in Node(list(value or ()), "tools").items():
        kind = node.get("type").text_or("custom")
        if kind != "custom":
            left_out.add(kind)
            continue
        name = node.get("name").text()
        if name in names:
            raise node.get("name").fault(f"there are two tools named {name[:64]!r}")
        names.add(name)
        functions.append(function_tool(node, name, node.get("input_schema").object()))
    return functions, left_out


def read_choice(value: Any, names: Iterable[str]) -> tuple[Any, bool | None]:
    """The chat request's `tool_choice` and `parallel_tool_calls`. Raises RequestError."""
    if value is None:
        return None, None
    node = Node(value, "tool_choice")
    kind = node.get("type").one_of(("auto", "any", "tool", "none"))
    is_parallel = False if node.get("disable_parallel_tool_use").flag_or(False) else None
    if kind == "tool":
        name = node.get("name").text()
        if name not in names:
            raise node.get("name").fault(f"there is no tool named {name[:64]!r}")
        return {"type": "function", "function": {"name": name}}, is_parallel
    if kind == "any" and not list(names):
        raise node.get("type").fault("a call is required, but no tool can be offered")
    return {"auto": "auto", "any": "required", "none": "none"}[kind], is_parallel


def thinks(value: Any) -> bool | None:
    """Whether the client wants thinking; None where it leaves that to the model."""
    if value is None:
        return None
    kind = Node(value, "thinking").get("type").text()
    return kind != "disabled"


def response_format(body: MessagesRequest) -> dict[str, Any] | None:
    """`output_config.format`, or `output_format`, as the chat API's `response_format`."""
    node = Node(body.output_config or {}, "output_config").get("format")
    if node.value is None:
        node = Node(body.output_format, "output_format")
    if node.value is None:
        return None
    if body.response_format is not None:
        raise node.fault("send either this or response_format")
    node.get("type").one_of(("json_schema",))
    schema = node.get("schema").object()
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
