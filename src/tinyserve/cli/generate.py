"""`tinyserve generate`: complete a prompt from the command line or from stdin, as it comes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinyserve.cli.options import configuration, sampling_fields
from tinyserve.errors import RequestError
from tinyserve.logs import configure_logging

if TYPE_CHECKING:
    from tinyserve.engine.llm import LLM

DEFAULT_MAX_TOKENS = 128


def run(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    configure_logging("warning")
    prompt = arguments.prompt
    if prompt is None:
        if sys.stdin is None or sys.stdin.isatty():  # None: it was closed
            raise RequestError("no prompt: give one, or pipe one in", param="prompt")
        prompt = sys.stdin.read()
    fields = {"max_tokens": DEFAULT_MAX_TOKENS, **sampling_fields(arguments)}

    from tinyserve.engine.llm import LLM

    with LLM(config=config) as llm:
        complete(llm, prompt, fields)
    return 0


def complete(llm: LLM, prompt: str, fields: Mapping[str, Any]) -> None:
    """Write the completion of `prompt` to stdout as it comes."""
    with llm.stream(prompt, fields) as stream:
        for delta in stream:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
