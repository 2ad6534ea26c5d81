"""Request bodies that are nearly right: valid ones, changed in places; made from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

USER = {"role": "user", "content": "hello there"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.0},
    "seed": 3,
    "stop": ["x"],
    "stop_token_ids": [9],
    "include_stop_str_in_output": True,
    "min_tokens": 1,
    "max_tokens": 3,
    "ignore_eos": True,
    "prompt_logprobs": 1,
    "n": 2,
    "allowed_token_ids": [5, 6],
    "bad_words": ["x"],
    "skip_special_tokens": False,
    "stream": True,
    "user": "u",
    "priority": 1,
    "speculative": False,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "cache_salt": "s",
    "truncate_prompt_tokens": 5,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "model": "tinyserve",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "structured_outputs": {"regex": "[a-z]+"},
    "guided_json": SCHEMA,
    "guided_choice": ["a", "b"],
}
ROUTES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # path -> what a body must have, what it may have besides
    "/v1/completions": (
        {"prompt": "hello"},
        {
            **SAMPLING,
            "echo": True,
            "logprobs": 2,
            "best_of": 3,
            "suffix": "",
            "prompt": [[5, 6], [7]],
            "add_special_tokens": False,
        },
    ),
    "/v1/chat/completions": (
        {"messages": [USER]},
        {
            **SAMPLING,
            "logprobs": True,
            "top_logprobs": 2,
            "max_completion_tokens": 3,
            "tools": [TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_format": {"type": "json_object"},
            "add_generation_prompt": True,
            "continue_final_message": False,
            "chat_template_kwargs": {"a": 1},
            "reasoning_effort": "low",
            "echo": False,
            "modalities": ["text"],
            "messages": [
                {"role": "system", "content": "s"},
                USER,
                {"role": "assistant", "content": "a"},
                USER,
            ],
        },
    ),
    "/v1/responses": (
        {"input": "hello"},
        {
            "instructions": "be brief",
            "max_output_tokens": 3,
            "stream": True,
            "temperature": 0.5,
            "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
            "tool_choice": "auto",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            "top_logprobs": 1,
            "store": False,
            "reasoning": {"effort": "low"},
            "include": [],
            "truncation": "auto",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        },
    ),
    "/v1/messages": (
        {"messages": [USER], "max_tokens": 3},
        {
            "system": "be brief",
            "stream": True,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.5,
            "stop_sequences": ["x"],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "u"},
        },
    ),
    "/v1/messages/count_tokens": ({"messages": [USER]}, {"system": "s", "tools": []}),
    "/v1/embeddings": (
        {"input": "hello"},
        {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4, "user": "u"},
    ),
    "/tokenize": ({"prompt": "hello"}, {"messages": [USER], "add_special_tokens": False}),
    "/detokenize": ({"tokens": [5, 6]}, {"skip_special_tokens": True}),
}
ALIASES = {
    "/v1/responses/input_tokens": "/v1/responses",
    "/v1/tokenize": "/tokenize",
    "/v1/detokenize": "/detokenize",
    "/apply-template": "/v1/chat/completions",
    "/v1/chat/completions/render": "/v1/chat/completions",
}
ROUTES |= {alias: ROUTES[path] for alias, path in ALIASES.items()}

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    0.5,
    1e300,
    -0.0,
    1e-320,
    2**31,
    2**53,
    2**63,
    2**64,
    -(2**63),
    10**400,
    "",
    " ",
    "a",
    "0",
    "1",
    "null",
    "\u0000",
    "\U0001f600",
    "\u202e",
    "x" * 300,
    "é" * 40,
    [],
    {},
    [[]],
    [{}],
    [None],
    {"": None},
    {"a": []},
    [1],
    [-1],
    ["a"],
    [1, "a"],
    [True],
    [10**9],
    [[1], "a"],
    [[[1]]],
    ["a"] * 30,
    {"type": "text"},
    {"type": None},
    {"type": "x"},
    "auto",
    "none",
    "required",
    "user",
    "assistant",
    "system",
    "tool",
    "json_object",
    "default",
    {"role": "user"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "x"},
    {"type": "function"},
    TOOL,
    SCHEMA,
    {"$ref": "#/a"},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    {"json": SCHEMA},
    {"regex": "("},
    {"regex": "a{1,99999}"},
    {"choice": []},
    {"grammar": "root ::= 'a'"},
    {"lark": "x"},
    "[",
    "(a|b",
    "{{ 1 }}",
    "{% for i in x %}",
    "<tool_call>",
    "<think>",
    "<|im_end|>",
    '{"a": 1}',
)


class BodyFuzzer:
    """Makes bodies; `routes` are those that the server has."""

    def __init__(self, seed: int, routes: list[str]) -> None:
        self._random = random.Random(seed)
        self._routes = [route for route in ROUTES if route in routes]
        self._all_fields = sorted({name for _, more in ROUTES.values() for name in more})

    def bodies(self, count: int) -> Iterator[tuple[str, bytes]]:
        """(path, content)"""
        for _ in range(count):
            path = self._random.choice(self._routes)
            yield path, self._content(self._body(path))

    def _body(self, path: str) -> Any:
        must, may = ROUTES[path]
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body: dict[str, Any] = {limit: 2, **copy.deepcopy(must)}
        for name in self._random.sample(sorted(may), k=min(len(may), self._random.randrange(5))):
            body[name] = copy.deepcopy(may[name])
        mutations: tuple[Callable[[dict[str, Any]], None], ...] = (
            self._set_odd,
            self._set_odd,
            self._change_deep,
            self._change_deep,
            self._drop,
            self._nest,
        )
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 2, 3))):
            self._random.choice(mutations)(body)
        return self._odd() if self._random.random() < 0.02 else body

    def _odd(self) -> Any:
        return copy.deepcopy(self._random.choice(ODD))

    def _set_odd(self, body: dict[str, Any]) -> None:
        names = self._all_fields if self._random.random() < 0.3 else sorted(body)
        if names:
            body[self._random.choice(names)] = self._odd()

    def _drop(self, body: dict[str, Any]) -> None:
        if body:
            del body[self._random.choice(sorted(body))]

    def _nest(self, body: dict[str, Any]) -> None:
        if body:
            name = self._random.choice(sorted(body))
            wrap = self._random.choice((lambda v: [v], lambda v: {"a": v}, lambda v: [v, v]))
            for _ in range(self._random.choice((1, 1, 2, 50))):
                body[name] = wrap(body[name]) if len(str(body[name])) < 5000 else body[name]

    def _change_deep(self, body: dict[str, Any]) -> None:
        """Replace, drop or add one value somewhere inside."""
        node: Any = body
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                return
            key = self._random.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and self._random.random() < 0.8:
                node = node[key]
                continue
            if self._random.random() < 0.2:
                del node[key]
            else:
                node[key] = self._odd()
            return

    def _content(self, body: Any) -> bytes:
        content = json.dumps(body, ensure_ascii=self._random.random() < 0.5).encode()
        kind = self._random.random()
        if kind < 0.05:  # bytes changed anywhere
            data = bytearray(content)
            for _ in range(self._random.randrange(1, 4)):
                data[self._random.randrange(len(data))] = self._random.randrange(256)
            return bytes(data)
        if kind < 0.08:
            return content[: self._random.randrange(len(content) + 1)]
        if kind < 0.1:
            return content.replace(b"1", b"NaN").replace(b"2", b"Infinity")
        return content
