"""`CallReader`: text in pieces to the parts of a message, in one tool format.

It shows text as soon as it cannot be the beginning of a call, and the arguments of a call as they
are written. White space beside calls shows only between texts, so that an answer of calls alone has
no content. Where no call comes of it, the text is shown exactly as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tinyserve.text.markers import num_held
from tinyserve.text.messages import Part, TextPart, ToolCallPart
from tinyserve.text.tool_formats import ToolFormat
from tinyserve.text.tool_json import ARGUMENT_KEYS, NotACall, Reading
from tinyserve.text.tool_use import Function
from tinyserve.text.tool_values import parameter_types

# What an unannounced call may hold; other objects are answers, to be shown without delay.
BARE_KEYS = ("name", "function", "type", "id", *ARGUMENT_KEYS)


class CallReader:
    """Reads one message. `functions`: those that may be called.

    Calls beyond `max_calls` are left out. A call of any other function is passed on, for the client
    to answer; but where no marker announced it, it is text. With `demands_calls`, what is held back
    at the end of a message is dropped: it can only be a call cut off. `num_calls` have begun;
    `is_cut`: the text has ended inside the arguments of one.
    """

    def __init__(
        self,
        form: ToolFormat,
        functions: Sequence[Function],
        *,
        max_calls: int | None = None,
        demands_calls: bool = False,
    ) -> None:
        self._format = form
        self._functions = {function.name: function for function in functions}
        self._max_calls = max_calls
        self._demands_calls = demands_calls
        self.num_calls = 0
        self.is_cut = False
        self.opener = ""
        self._parts: list[Part] = []
        self._pieces: list[str] = []  # arguments that are not yet in a part
        self._arguments: list[str] = []  # all of the latest call
        # While reading text: what may become a marker, and white space that may not be shown.
        self._held = ""
        self._space = ""
        self._has_text = False
        self._begins_line = True  # what comes next, blanks aside
        # While reading a call: what reads it; and the marker ("" after another call) and the
        # characters, to be shown as text if it turns out to be no call.
        self._reading: Reading[str] | None = None
        self._raw: list[str] = []
        self._is_bare = False  # no marker announced it
        self._has_begun = False  # its name is known, and a part of it given
        self._is_between = False  # a call has ended; the next may follow without a marker
        self._is_muted = False  # it is one call too many

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with this text."""
        rest = self._held + text
        self._held = ""
        while rest:
            rest = self._read_text(rest) if self._reading is None else self._read_call(rest)
        return self._take()

    def flush(self) -> list[Part]:
        """What was held back, at the end of the text."""
        if self._reading is not None:
            self._reading = None
            self.is_cut = self._has_begun and not (
                self._is_muted or _is_json("".join(self._arguments))
            )
            if not (self._has_begun or self._is_between or self._demands_calls):
                self._show("".join(self._raw))
        if self._held and not self._demands_calls:
            self._show(self._held)
        self._held = ""
        if self._space and not self.num_calls:
            self._parts.append(TextPart(self._space))
        self._space = ""
        return self._take()

    # Text

    def _read_text(self, text: str) -> str:
        """Show what is text; the rest, from where a call may begin."""
        markers = (*self._format.openers, *self._format.closers)
        hits = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
        if (bare_at := self._bare_at(text)) is not None:
            hits.append((bare_at, ""))
        if not hits:
            shown = len(text) - num_held(text, markers)
            self._held = text[shown:]
            self._read_on(text[:shown])
            return ""
        at, marker = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
        self._read_on(text[:at])
        self._begins_line = False
        if not marker or marker in self._format.openers:
            self._start(marker, is_bare=not marker)
        elif not self.num_calls:
            self._show(marker)  # closes nothing
        return text[at + len(marker) :]

    def _bare_at(self, text: str) -> int | None:
        """Where a line of `text` begins that may be an unannounced call; None if there is none."""
        bare = self._format.bare
        if not bare:
            return None
        if self._begins_line and text.lstrip().startswith(bare):
            return text.index(bare)
        found = re.search(rf"\n\s*{re.escape(bare)}", text)
        return None if found is None else found.end() - 1

    def _read_on(self, text: str) -> None:
        """Show what cannot be a call."""
        self._show(text)
        _, line, rest = text.rpartition("\n")
        self._begins_line = not rest.strip() and (bool(line) or self._begins_line)

    def _show(self, text: str) -> None:
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        if not stripped:
            return
        if self.num_calls and not self._has_text:
            stripped = stripped.lstrip()
        self._has_text = True
        self._parts.append(TextPart(stripped))

    # Calls

    def _start(self, marker: str, *, is_bare: bool) -> None:
        self._reading = self._format.read(self)
        self._raw = [marker]
        self.opener = marker
        next(self._reading)
        self._is_bare = is_bare
        self._has_begun = self._is_between = False

    def _read_call(self, text: str) -> str:
        """Read on in a call; what comes after it."""
        reading, raw = self._reading, self._raw
        assert reading is not None
        for index, char in enumerate(text):
            raw.append(char)
            try:
                reading.send(char)
            except StopIteration as end:
                self._reading = None
                return f"{end.value}{text[index + 1 :]}"
            except NotACall:
                self._reading = None
                self._add_arguments()
                if self._has_begun:  # what has been shown of it stays; it ends here
                    return text[index:]
                self._show(raw[0])
                return "".join(raw[1:]) + text[index + 1 :]
        return ""

    # What the format's `read` asks and tells (`tool_json.Calls`)

    def open(self) -> None:
        if self._is_between:
            self._raw[:] = ["", self._raw[-1]]
        self._is_between = False

    def types(self, name: str, key: str) -> frozenset[str]:
        function = self._functions.get(name)
        return parameter_types(None if function is None else function.parameters, key)

    def member(self, key: str) -> None:
        if self._is_bare and key not in BARE_KEYS:
            raise NotACall

    def begin(self, name: str) -> None:
        if self._is_bare and name not in self._functions:
            raise NotACall
        self._has_begun = True
        self._is_muted = self._max_calls is not None and self.num_calls >= self._max_calls
        self._arguments.clear()
        if not self._is_muted:
            self._parts.append(ToolCallPart(self.num_calls, "", self._format.new_id(), name))
            self.num_calls += 1

    def arguments(self, piece: str) -> None:
        self._arguments.append(piece)
        if not self._is_muted:
            self._pieces.append(piece)

    def end(self) -> None:
        self._add_arguments()
        self._has_begun = False
        self._is_between = True
        self._raw[:] = [""]

    # Parts

    def _take(self) -> list[Part]:
        """The parts since the last time, neighbours of one kind joined."""
        self._add_arguments()
        parts, self._parts = self._parts, []
        return joined(parts)

    def _add_arguments(self) -> None:
        """Make a part of the arguments that have come."""
        if self._pieces:
            self._parts.append(ToolCallPart(self.num_calls - 1, "".join(self._pieces)))
            self._pieces.clear()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def joined(parts: list[Part]) -> list[Part]:
    """The same parts with neighbours of one kind, or of one call, made one."""
    groups: list[list[Part]] = []
    for part in parts:
        if groups and _continues(groups[-1][0], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def _continues(first: Part, part: Part) -> bool:
    if isinstance(first, ToolCallPart) and isinstance(part, ToolCallPart):
        return first.index == part.index and part.id is None
    return type(first) is type(part) and not isinstance(part, ToolCallPart)


def _join(group: list[Part]) -> Part:
    first = group[0]
    if isinstance(first, ToolCallPart):
        pieces = [part.arguments for part in group if isinstance(part, ToolCallPart)]
        return ToolCallPart(first.index, "".join(pieces), first.id, first.name)
    text = "".join(part.text for part in group if not isinstance(part, ToolCallPart))
    return type(first)(text)
