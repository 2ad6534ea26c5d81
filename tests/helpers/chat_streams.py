"""The chunks of a chat stream put together as a client would; the rules of the wire are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENVELOPE = ("id", "object", "created", "model", "system_fingerprint")


def accumulate(chunks: Sequence[dict[str, Any]], num_choices: int = 1) -> list[dict[str, Any]]:
    """The choices in the form of a whole answer: {"message", "finish_reason", "logprobs", ...}."""
    assert len({tuple(chunk[key] for key in ENVELOPE) for chunk in chunks}) == 1
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            _take(choices, part)
    assert sorted(choices) == list(range(num_choices))
    for choice in choices.values():
        assert choice["finish_reason"] is not None, "STR-13: no chunk has a finish reason"
        if "tool_calls" in choice["message"] and not choice["message"]["content"]:
            choice["message"]["content"] = None
    return [choices[index] for index in sorted(choices)]


def _take(choices: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    index, delta = part["index"], part["delta"]
    if index not in choices:
        assert delta == {"role": "assistant", "content": ""}, "STR-14: the first chunk has the role"
        choices[index] = {
            "index": index, "message": {"role": "assistant", "content": ""}, "token_ids": [],
            "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        return
    choice = choices[index]
    assert choice["finish_reason"] is None, "STR-13: a chunk after the last"
    assert "role" not in delta, "STR-14: the role comes once"
    assert len(delta) <= 1, "one kind of text in a chunk"
    message = choice["message"]
    for key in ("content", "reasoning_content"):
        if key in delta:
            assert delta[key], "an empty piece"
            message[key] = message.get(key, "") + delta[key]
    for piece in delta.get("tool_calls", ()):
        _take_call(message.setdefault("tool_calls", []), piece)
    if part["logprobs"] is not None:
        logprobs = choice["logprobs"] or {"content": [], "refusal": None}
        choice["logprobs"] = logprobs
        logprobs["content"] += part["logprobs"]["content"]
    choice["token_ids"] += part.get("token_ids", [])
    choice["finish_reason"] = part["finish_reason"]


def _take_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """TOOL-06: id, type and name come with the first piece of a call alone."""
    function = piece["function"]
    if piece["index"] == len(calls):
        assert set(piece) == {"index", "id", "type", "function"}
        assert set(function) == {"name", "arguments"}
        calls.append({"id": piece["id"], "type": piece["type"], "function": dict(function)})
        return
    assert set(piece) == {"index", "function"}
    assert set(function) == {"arguments"}
    assert piece["index"] == len(calls) - 1
    calls[-1]["function"]["arguments"] += function["arguments"]


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose calls have no ids, which no two answers share."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [
            {key: value for key, value in call.items() if key != "id"}
            for call in message["tool_calls"]
        ]
    return {**choice, "message": message}
