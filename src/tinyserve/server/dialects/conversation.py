"""`Conversation`: chat messages from the turns of another protocol.

The Responses and Messages APIs cut a conversation into items and blocks; a chat template wants
messages. What an assistant thought, said and called in one turn becomes one message here; each
result of a call becomes a `tool` message. Knows no field of either API and checks nothing.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


class Conversation:
    """Collects turns in order; `messages` gives them in the form of `ChatRequest.messages`.

    With `joins_turns`, neighbouring texts of the same speaker become one message.
    """

    def __init__(self, *, joins_turns: bool) -> None:
        self._joins_turns = joins_turns
        self._messages: list[Message] = []
        self._called: dict[str, str] = {}  # call id -> name

    def system(self, text: str) -> None:
        """Instructions. Those before everything else become one message: many templates take no
        more than one, and only at the start."""
        if self._messages and all(m["role"] == "system" for m in self._messages):
            self._messages[-1]["content"] += f"\n\n{text}"
        else:
            self._messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        last = self._last("user")
        if last is not None and self._joins_turns:
            last["content"] += f"\n{text}"
        else:
            self._messages.append({"role": "user", "content": text})

    def assistant(self, text: str) -> None:
        last = self._last("assistant")
        if last is not None and not last["content"]:
            last["content"] = text
        elif last is not None and self._joins_turns:
            last["content"] += f"\n{text}"
        else:
            self._messages.append({"role": "assistant", "content": text})

    def reasoning(self, text: str) -> None:
        """What the assistant thought before what it says or calls next."""
        last = self._last("assistant")
        has_acted = last is not None and (last["content"] or "tool_calls" in last)
        if last is None or (has_acted and not self._joins_turns):
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        before = last.get("reasoning_content")
        last["reasoning_content"] = text if before is None else f"{before}\n{text}"

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """The assistant calls a tool; `arguments` is JSON text."""
        self._called[call_id] = name
        last = self._last("assistant")
        if last is None:
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        last.setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, text: str) -> None:
        """What a tool gave back."""
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        if call_id in self._called:
            message["name"] = self._called[call_id]
        self._messages.append(message)

    def messages(self) -> list[Message]:
        """The messages; an assistant's turn that says and calls nothing is left out."""
        return [
            m
            for m in self._messages
            if m["role"] != "assistant" or m["content"] or "tool_calls" in m
        ]

    def _last(self, role: str) -> Message | None:
        last = self._messages[-1] if self._messages else None
        return last if last is not None and last["role"] == role else None
