"""`tinyserve chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinyserve.cli.options import configuration, sampling_fields
from tinyserve.errors import RequestError
from tinyserve.logs import configure_logging
from tinyserve.models.default_model import chat_sampling

if TYPE_CHECKING:
    from tinyserve.engine.llm import LLM

HELP = """\
/help    this text
/reset   forget the conversation
/quit    leave (or Ctrl-D)
Ctrl-C   stop the answer"""


def run(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    configure_logging("warning")
    if sys.stdin is None:  # it was closed
        raise RequestError("there is nothing to read from: stdin is closed")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history

    from tinyserve.engine.llm import LLM

    fields = {**chat_sampling(config.model), **sampling_fields(arguments)}
    with LLM(config=config) as llm:
        shown = ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))
        print(f"{llm.engine.model_name}{shown and f' ({shown})'}. /help for help.", file=sys.stderr)
        talk(llm, Conversation(arguments.system), fields)
    return 0


@dataclass
class Conversation:
    """The messages so far; a system message survives a reset."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


def talk(llm: LLM, conversation: Conversation, fields: Mapping[str, Any]) -> None:
    """Read lines until the end; answer each."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:  # at the prompt it only clears the line
            print()
            continue
        if line == "/quit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP)
        elif line:
            answer(llm, conversation, line, fields)


def answer(llm: LLM, conversation: Conversation, line: str, fields: Mapping[str, Any]) -> None:
    """Print the answer to `line` as it comes; what was said stays in the conversation."""
    conversation.add("user", line)
    said: list[str] = []
    try:
        with llm.stream_chat(conversation.messages, fields) as stream:
            for delta in stream:
                said.append(delta.text)
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except RequestError as error:  # too long, say: forget the line, keep the rest
        conversation.messages.pop()
        print(f"tinyserve: {error}", file=sys.stderr)
        return
    conversation.add("assistant", "".join(said))
    sys.stdout.write("\n")
