"""From the deltas of one choice to its blocks: thinking, text and tool calls, one after the other.

The Responses API calls them output items, the Messages API content blocks; both stream a beginning,
pieces and an end of each. `BlockReader` finds these in the deltas, for a stream and for a whole
answer alike, so that the two are equal by construction. Knows no JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tinyserve.server.deltas import Delta, ScoredToken
from tinyserve.text.messages import MessageParser, Part, ReasoningPart, TextPart, ToolCallPart


class Kind(Enum):
    """What a block holds."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Step(Enum):
    """What happens to a block."""

    BEGINS = "begins"
    GROWS = "grows"
    ENDS = "ends"


@dataclass(slots=True)
class Block:
    """One block. `call_id` and `name` are those of a call; its text is the arguments."""

    index: int
    kind: Kind
    call_id: str | None = None
    name: str | None = None
    is_open: bool = True
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class BlockEvent:
    """A step of `block`; one that grows it has a `text`, and the logprobs of its tokens."""

    step: Step
    block: Block
    text: str = ""
    logprobs: list[ScoredToken] = field(default_factory=list)


@dataclass(slots=True)
class Ending:
    """How the choice ended."""

    finish_reason: str | None = None
    stop_reason: int | str | None = None
    has_calls: bool = False


class BlockReader:
    """Reads the deltas of one choice. `blocks` are those that have begun; the last may be open.

    White space alone makes no block beside others: models put it between their calls.
    `reasoning_tokens` counts the tokens that brought thinking, with its marks.
    """

    def __init__(self, parser: MessageParser) -> None:
        self.blocks: list[Block] = []
        self.ending = Ending()
        self.reasoning_tokens = 0
        self._parser = parser
        self._open: Block | None = None
        self._call_index = -1  # of the open call
        self._space = ""  # held back until a visible character follows
        self._logprobs: list[ScoredToken] = []  # of tokens whose text has not come out
        self._num_tokens = 0  # the same tokens, counted

    def feed(self, deltas: Iterable[Delta]) -> list[BlockEvent]:
        """What the deltas change, in order."""
        events: list[BlockEvent] = []
        for delta in deltas:
            self._num_tokens += len(delta.token_ids)
            self._logprobs += delta.logprobs or ()
            for part in self._parts(delta):
                self._take(part, events)
            if delta.finish_reason is not None:
                self._finish(delta, events)
        return events

    def _parts(self, delta: Delta) -> list[Part]:
        parts = self._parser.push(delta.text) if delta.text else []
        return parts if delta.finish_reason is None else parts + self._parser.flush()

    def _take(self, part: Part, events: list[BlockEvent]) -> None:
        if isinstance(part, TextPart):
            self._text(part.text, events)
        elif isinstance(part, ReasoningPart):
            self.reasoning_tokens += self._num_tokens
            self._grow(Kind.REASONING, part.text, events)
        else:
            self._call(part, events)
        self._num_tokens = 0

    def _text(self, text: str, events: list[BlockEvent]) -> None:
        if self._open is None or self._open.kind is not Kind.TEXT:
            self._space += text
            if not self._space.strip():
                return
            text, self._space = self._space, ""
        self._grow(Kind.TEXT, text, events)

    def _call(self, part: ToolCallPart, events: list[BlockEvent]) -> None:
        if self._open is None or self._open.kind is not Kind.CALL or part.index != self._call_index:
            self._begin(Block(len(self.blocks), Kind.CALL, part.id, part.name), events)
            self._call_index = part.index
        if part.arguments:
            self._grow(Kind.CALL, part.arguments, events)
        self._logprobs = []

    def _grow(self, kind: Kind, text: str, events: list[BlockEvent]) -> None:
        if self._open is None or self._open.kind is not kind:
            self._begin(Block(len(self.blocks), kind), events)
        block = self._open
        assert block is not None
        logprobs, self._logprobs = self._logprobs, []
        if kind is not Kind.TEXT:
            logprobs = []
        block.pieces.append(text)
        block.logprobs += logprobs
        events.append(BlockEvent(Step.GROWS, block, text, logprobs))

    def _begin(self, block: Block, events: list[BlockEvent]) -> None:
        self._end(events)
        self._space = ""
        self._open = block
        self.blocks.append(block)
        events.append(BlockEvent(Step.BEGINS, block))

    def _end(self, events: list[BlockEvent]) -> None:
        if self._open is not None:
            self._open.is_open = False
            events.append(BlockEvent(Step.ENDS, self._open))
            self._open = None

    def _finish(self, delta: Delta, events: list[BlockEvent]) -> None:
        if not self.blocks and self._space:
            self._grow(Kind.TEXT, self._space, events)
        self._end(events)
        self.ending = Ending(delta.finish_reason, delta.stop_reason, self._parser.has_calls)
