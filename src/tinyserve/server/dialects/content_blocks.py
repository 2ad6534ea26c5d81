"""From the deltas of one choice to its blocks: thinking, text and tool calls, one after the other.

The Responses API calls them output items, the Messages API content blocks; both stream a beginning,
pieces and an end of each. `BlockReader` finds these in the deltas, for a stream and for a whole
answer alike, so that the two are equal by construction. Knows no JSON.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tinyserve.server.choice_reader import ChoiceReader
from tinyserve.server.deltas import Delta, ScoredToken
from tinyserve.text.messages import Part, ReasoningPart, TextPart, ToolCallPart


class Kind(Enum):
    """What a block holds."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


class Change(Enum):
    """What happens to a block."""

    BEGINS = "begins"
    GROWS = "grows"
    ENDS = "ends"


@dataclass(slots=True)
class Block:
    """One block."""

    index: int
    kind: Kind
    call_id: str | None = None  # set for a call, as `name`; its text is the arguments
    name: str | None = None
    is_open: bool = True
    is_cut: bool = False  # the answer reached its limit inside it, or a stop string inside a call
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class BlockEvent:
    """A change of `block`; one that grows it has a `text`, and the logprobs of its tokens."""

    change: Change
    block: Block
    text: str = ""
    logprobs: list[ScoredToken] = field(default_factory=list)


@dataclass(slots=True)
class Ending:
    """How the choice ended. `has_calls`: with calls, of which none was cut."""

    finish_reason: str | None = None
    stop_reason: int | str | None = None
    has_calls: bool = False


class BlockReader:
    """Reads the deltas of one choice. `blocks` are those that have begun; the last may be open.

    White space alone makes no block beside others: models put it between their calls.
    """

    def __init__(self, reader: ChoiceReader) -> None:
        self.blocks: list[Block] = []
        self.ending = Ending()
        self._reader = reader
        self._open: Block | None = None
        self._call_index = -1  # the open call's
        self._space = ""  # held back until a visible character follows
        self._length = 0  # characters read so far
        self._logprobs: list[ScoredToken] = []  # whose text is held back or still to come

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    def feed(self, deltas: Iterable[Delta]) -> list[BlockEvent]:
        """What the deltas change, in order."""
        events: list[BlockEvent] = []
        for delta in deltas:
            self._logprobs += delta.logprobs or ()
            for cut in self._cut(delta):
                self._length += len(cut.text)
                for piece in self._reader.read(cut):
                    self._take(piece.part, events)
            if delta.finish_reason is not None:
                self._finish(delta, events)
        return events

    def _cut(self, delta: Delta) -> list[Delta]:
        """The delta, cut wherever a token with logprobs begins inside its text. Otherwise the block
        that such a token counts for would depend on how many tokens came in one step.
        """
        text, begin = delta.text, self._length
        inside = {t.offset - begin for t in self._logprobs if 0 < t.offset - begin < len(text)}
        if not inside:
            return [delta]
        places = [0, *sorted(inside), len(text)]
        cuts = [Delta(delta.index, text[i:j], [], None) for i, j in itertools.pairwise(places)]
        cuts[0].token_ids = delta.token_ids
        cuts[-1].finish_reason, cuts[-1].stop_reason = delta.finish_reason, delta.stop_reason
        return cuts

    def _take(self, part: Part | None, events: list[BlockEvent]) -> None:
        if isinstance(part, TextPart):
            self._text(part.text, events)
        elif isinstance(part, ReasoningPart):
            self._grow(Kind.REASONING, part.text, events)
        elif part is not None:
            self._call(part, events)

    def _text(self, text: str, events: list[BlockEvent]) -> None:
        if self._open is None or self._open.kind is not Kind.TEXT:
            self._space += text
            if not self._space.strip():
                return
            text = self._space
        self._grow(Kind.TEXT, text, events)

    def _call(self, part: ToolCallPart, events: list[BlockEvent]) -> None:
        if self._open is None or self._open.kind is not Kind.CALL or part.index != self._call_index:
            self._begin(Block(len(self.blocks), Kind.CALL, part.id, part.name), events)
            self._call_index = part.index
        if part.arguments:
            self._grow(Kind.CALL, part.arguments, events)
        self._read_logprobs()

    def _grow(self, kind: Kind, text: str, events: list[BlockEvent]) -> None:
        block = self._open
        if block is None or block.kind is not kind:
            block = self._begin(Block(len(self.blocks), kind), events)
        logprobs: list[ScoredToken] = []
        if kind is Kind.TEXT:
            logprobs, self._space = self._scored(), ""
        block.pieces.append(text)
        block.logprobs += logprobs
        events.append(BlockEvent(Change.GROWS, block, text, logprobs))

    def _begin(self, block: Block, events: list[BlockEvent]) -> Block:
        self._end(events)
        if block.kind is not Kind.TEXT:
            self._space = ""
        self._open = block
        self.blocks.append(block)
        events.append(BlockEvent(Change.BEGINS, block))
        return block

    def _end(self, events: list[BlockEvent]) -> None:
        if self._open is not None:
            self._open.is_open = False
            events.append(BlockEvent(Change.ENDS, self._open))
            self._open = None

    def _scored(self) -> list[ScoredToken]:
        """Take out the tokens that wait and have been read, and return those of the answer, which
        begin after the thinking: one delta may hold the end of both.
        """
        if not self._logprobs:
            return []
        begin = self._reader.thinking_end or 0
        return [token for token in self._read_logprobs() if token.offset >= begin]

    def _read_logprobs(self) -> list[ScoredToken]:
        """Take out the tokens that wait and begin in what has been read."""
        num_read = bisect_left(self._logprobs, self._length, key=lambda token: token.offset)
        read, self._logprobs = self._logprobs[:num_read], self._logprobs[num_read:]
        return read

    def _finish(self, delta: Delta, events: list[BlockEvent]) -> None:
        if not self.blocks and self._space:
            self._grow(Kind.TEXT, self._space, events)
        if self._open is not None:
            self._open.is_cut = delta.finish_reason == "length" or self._reader.is_call_cut
        self._end(events)
        has_calls = any(block.kind is Kind.CALL for block in self.blocks)
        has_calls = has_calls and not self._reader.is_call_cut
        self.ending = Ending(delta.finish_reason, delta.stop_reason, has_calls)
