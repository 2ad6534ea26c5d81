"""`ChatContext`: what is settled of a chat request before its answer is written.

The writers of all chat protocols are made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinyserve.server.protocol import ChatRequest
from tinyserve.server.writer import Identity, Writer
from tinyserve.text.answer_format import AnswerFormat
from tinyserve.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatContext:
    """`answer` is how the model's text is read."""

    body: ChatRequest
    tokenizer: Tokenizer
    identity: Identity
    num_choices: int
    answer: AnswerFormat


MakeWriter = Callable[[ChatContext], Writer]
