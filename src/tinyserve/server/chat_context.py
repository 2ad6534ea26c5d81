"""`ChatContext`: what is settled of a chat request before its answer is written.

The writers of all chat protocols are made from it. It knows which tools may be called, what the
prompt left open, and so how the model's text is to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tinyserve.server.protocol import ChatRequest
from tinyserve.server.writer import Identity, Writer
from tinyserve.text.message_format import MessageFormat
from tinyserve.text.messages import MessageParser
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tool_use import ToolUse


@dataclass(frozen=True)
class ChatContext:
    """`tools` None: none may be called. `thinking`: whether the prompt ends in thinking that is
    open (True), closed (False), or in none (None). `echo` is what comes before the model's text.
    """

    body: ChatRequest
    tokenizer: Tokenizer
    identity: Identity
    num_choices: int
    tools: ToolUse | None = None
    message_format: MessageFormat = field(default_factory=MessageFormat)
    thinking: bool | None = None
    echo: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether all that the model writes is the answer's text."""
        has_calls = self.tools is not None and self.message_format.tools is not None
        return not has_calls and not self.message_format.reads_thinking

    @property
    def reads_thinking(self) -> bool:
        return self.message_format.reads_thinking

    @property
    def visible_ids(self) -> frozenset[int]:
        """Special tokens that the parser has to see."""
        return self.message_format.visible_ids(self.tools, self.tokenizer.special_id)

    def new_parser(self) -> MessageParser:
        """A parser for one choice."""
        return self.message_format.new_parser(self.tools, is_open=self.thinking)


MakeWriter = Callable[[ChatContext], Writer]
