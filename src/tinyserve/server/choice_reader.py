"""`ChoiceReader`: from the deltas of one choice to the parts of a chat message.

Tokens wait for a part to go with, like their text, so that nothing of a call shows before it is
known to be one. A stream and a whole answer read the same deltas the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tinyserve.server.chat import ChatContext
from tinyserve.server.deltas import Delta
from tinyserve.text.messages import Part


@dataclass(slots=True)
class Piece:
    """One part of the message, and the tokens that came with it."""

    part: Part | None  # None where only tokens or the end of the choice are left to tell
    delta: Delta  # the tokens and, in a choice's last piece, the finish reason; its text is unused


class ChoiceReader:
    """Reads one choice of a chat answer. `reasoning_tokens` counts its thinking so far.

    `is_call_cut`, once it has ended: a limit or a stop string of the request cut its last call.
    """

    def __init__(self, context: ChatContext) -> None:
        self._parser = context.answer.new_parser()
        tools = context.answer.tools
        self._choice = tools.choice if tools is not None else "auto"
        self._waiting: Delta | None = None
        self.is_call_cut = False
        self._thinking = _ThinkingCounter(context) if context.answer.reads_thinking else None

    @property
    def reasoning_tokens(self) -> int:
        if self._thinking is None:
            return 0
        return self._thinking.count(self._parser.thinking_end, self._parser.is_reasoning)

    @property
    def thinking_end(self) -> int | None:
        """How many characters of the answer are thinking, markers included; None until known."""
        return self._parser.thinking_end

    def read(self, delta: Delta) -> list[Piece]:
        """The pieces that became certain."""
        if self._thinking is not None:
            self._thinking.push(delta.token_ids, self._parser.thinking_end)
        parts = self._parser.push(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            parts += self._parser.flush()
        held = _joined(self._waiting, delta)
        if not parts and delta.finish_reason is None:
            self._waiting = held
            return []
        self._waiting = None
        if delta.finish_reason is not None:
            self.is_call_cut = self._parser.is_call_cut and not _ended_itself(delta)
        held.finish_reason = self._finish_reason(delta.finish_reason)
        return _spread(parts, held)

    def _finish_reason(self, reason: str | None) -> str | None:
        """OpenAI's: "tool_calls" where the model stopped after calls, but "stop" for a call that
        was asked for by name, or that a stop string cut.
        """
        is_called = self._parser.has_calls and self._choice != "named" and not self.is_call_cut
        return "tool_calls" if reason == "stop" and is_called else reason


def _ended_itself(delta: Delta) -> bool:
    """Did the model end, rather than the request cut it?"""
    return delta.finish_reason == "stop" and delta.stop_reason is None


class _ThinkingCounter:
    """Counts the tokens whose text begins inside the thinking, however the deltas were cut."""

    def __init__(self, context: ChatContext) -> None:
        self._detokenizer = context.tokenizer.detokenizer(
            skip_special_tokens=context.body.skip_special_tokens is not False,
            visible_ids=context.answer.visible_ids,
            keeps_space=bool(context.body.continue_final_message),
        )
        self._length = len(context.answer.echo)
        self._starts: list[int] = []

    def push(self, token_ids: Sequence[int], end: int | None) -> None:
        if end is not None and self._length >= end:
            return
        for token_id in token_ids:
            self._starts.append(self._length)
            self._length += len(self._detokenizer.push(token_id))

    def count(self, end: int | None, is_thinking: bool) -> int:
        if end is not None:
            return bisect_left(self._starts, end)
        return len(self._starts) if is_thinking else 0


def _joined(before: Delta | None, delta: Delta) -> Delta:
    """One delta with the tokens of both, and the end of the later one."""
    if before is None:
        return delta
    logprobs = None if delta.logprobs is None else [*(before.logprobs or ()), *delta.logprobs]
    return Delta(
        delta.index,
        "",
        before.token_ids + delta.token_ids,
        logprobs,
        delta.finish_reason,
        delta.stop_reason,
    )


def _spread(parts: Sequence[Part], delta: Delta) -> list[Piece]:
    """A piece for each part. The tokens go with the first, the finish reason with the last."""
    if len(parts) <= 1:
        return [Piece(parts[0] if parts else None, delta)]
    index = delta.index
    first = Delta(index, "", delta.token_ids, delta.logprobs)
    last = Delta(index, "", [], None, delta.finish_reason, delta.stop_reason)
    middle = [Delta(index, "", [], None) for _ in parts[1:-1]]
    return [Piece(p, d) for p, d in zip(parts, [first, *middle, last], strict=True)]
