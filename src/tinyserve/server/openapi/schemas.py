"""What responses look like, as JSON schemas: the part of the OpenAPI document that is data.

Of each object the members that clients rely on; more may be there. Errors are OpenAI's object,
on Anthropic's paths theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyserve.engine.sampling import MAX_LOGPROBS, MAX_N
from tinyserve.server.limits import MAX_BEST_OF, MAX_PRIORITY

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
OBJECT_OR_NULL: Schema = {"type": ["object", "null"]}


def exactly(value: str) -> Schema:
    return {"type": "string", "enum": [value]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """An object whose properties are all there, but for the `optional` ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


ERROR = record(
    {
        "error": record(
            {"message": STRING, "type": STRING, "param": TEXT_OR_NULL, "code": TEXT_OR_NULL}
        )
    }
)
MESSAGES_ERROR = record(
    {"type": exactly("error"), "error": record({"type": STRING, "message": STRING})}
)
HEALTH = record(
    {
        "status": {"type": "string", "enum": ["ok", "loading", "failed", "dead", "draining"]},
        "queue_depth": COUNT,
        "waiting": COUNT,
        "running": COUNT,
        "swapped": COUNT,
        "error": STRING,
    },
    optional=("queue_depth", "waiting", "running", "swapped", "error"),
)
MODEL = record(
    {"id": STRING, "object": exactly("model"), "created": COUNT, "owned_by": STRING}
    | {"root": STRING, "parent": TEXT_OR_NULL, "max_model_len": COUNT}
    | {"type": exactly("model"), "display_name": STRING, "created_at": STRING}
)
USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
    }
)
HEAD = {"id": STRING, "created": COUNT, "model": STRING, "system_fingerprint": STRING}
MESSAGE = record(
    {
        "role": exactly("assistant"),
        "content": TEXT_OR_NULL,
        "tool_calls": array({"type": "object"}),
    },
    optional=("tool_calls",),
)
CHOICE = {"index": COUNT, "logprobs": OBJECT_OR_NULL, "finish_reason": STRING}
TOKENS = {"count": COUNT, "max_model_len": COUNT, "tokens": array(COUNT)}
RENDERED = record({"prompt": STRING, **TOKENS})

# path -> the JSON of its good answer; of others no more is said than that it is an object
ANSWERS: Mapping[str, Schema] = {
    "/health": HEALTH,
    "/ping": HEALTH,
    "/version": record({"version": STRING}),
    "/load": record({"server_load": COUNT}),
    "/v1/models": record(
        {"object": exactly("list"), "data": array(MODEL)}
        | {"first_id": STRING, "last_id": STRING, "has_more": {"type": "boolean"}}
    ),
    "/v1/models/{name}": MODEL,
    "/v1/completions": record(
        HEAD
        | {"object": exactly("text_completion"), "usage": USAGE}
        | {"choices": array(record({**CHOICE, "text": STRING}))}
    ),
    "/v1/chat/completions": record(
        HEAD
        | {"object": exactly("chat.completion"), "usage": USAGE}
        | {"choices": array(record({**CHOICE, "message": MESSAGE}))}
    ),
    "/v1/embeddings": record(
        {
            "object": exactly("list"),
            "model": STRING,
            "data": array(
                record(
                    {
                        "object": exactly("embedding"),
                        "index": COUNT,
                        "embedding": {"type": ["array", "string"]},
                    }
                )
            ),
            "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    "/v1/responses": record(
        {"id": STRING, "object": exactly("response"), "status": STRING, "model": STRING}
        | {"output": array({"type": "object"})}
    ),
    "/v1/responses/input_tokens": record(
        {"object": exactly("response.input_tokens"), "input_tokens": COUNT}
    ),
    "/v1/messages": record(
        {"id": STRING, "type": exactly("message"), "role": exactly("assistant"), "model": STRING}
        | {"content": array({"type": "object"}), "stop_reason": STRING, "usage": {"type": "object"}}
    ),
    "/v1/messages/count_tokens": record({"input_tokens": COUNT}),
    "/tokenize": record(TOKENS),
    "/v1/tokenize": record(TOKENS),
    "/detokenize": record({"prompt": STRING}),
    "/v1/detokenize": record({"prompt": STRING}),
    "/v1/chat/completions/render": RENDERED,
    "/apply-template": RENDERED,
}
STREAMING = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})
PLAIN_TEXT = frozenset({"/metrics"})
PROBES = frozenset({"/health", "/ping"})  # both answer alike while not ready

# field -> least and greatest value, for the fields that mean the same in every body
BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.001, 100),
    "n": (1, MAX_N),
    "best_of": (1, MAX_BEST_OF),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "top_logprobs": (0, MAX_LOGPROBS),
    "logprobs": (0, MAX_LOGPROBS),
    "priority": (1 - MAX_PRIORITY, MAX_PRIORITY - 1),
    "truncate_prompt_tokens": (-1, 2**31 - 1),
}
