"""Which constraint a request puts on its answer's text, under any of the names that clients use.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`, SGLang's and
llama-server's top-level fields. Compiles nothing. Whatever is not understood is refused: a
constraint that was asked for is never ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tinyserve.errors import RequestError
from tinyserve.server.protocol import GenerationRequest
from tinyserve.text.grammar import Grammar, GrammarCompiler
from tinyserve.text.grammar_spec import (
    GrammarSpec,
    JsonStyle,
    check_backend,
    spec_of_options,
    spec_of_value,
)
from tinyserve.text.response_format import response_format_spec

# Fields that hold a constraint of their own, and what `structured_outputs` calls it.
_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}


def spec_of(body: GenerationRequest) -> GrammarSpec | None:
    """The one constraint of a request, None where it has none. Raises RequestError.

    Clients of several servers say the same under old and new names; that is one.
    """
    found = list(dict.fromkeys(_specs(body)))
    if len(found) > 1:
        names = " and ".join(dict.fromkeys(str(spec.param) for spec in found))
        raise RequestError(f"{names} exclude each other: send one constraint", param=found[1].param)
    return found[0] if found else None


def size_of(body: GenerationRequest) -> int:
    """About how many characters a request's constraints take."""
    fields = (body.response_format, body.structured_outputs, *(getattr(body, f) for f in _FIELDS))
    return sum(len(str(value)) for value in fields if value is not None)


async def compiled(grammars: GrammarCompiler, spec: GrammarSpec | None) -> Grammar | None:
    """The grammar of `spec`, if there is one, compiled while the event loop goes on. Raises what
    `GrammarCompiler.compile` does.
    """
    if spec is None:
        return None
    pending = grammars.submit(spec)
    if not pending.done():
        waiter = asyncio.wrap_future(pending)
        waiter.add_done_callback(_look)
        await asyncio.wait({waiter}, timeout=grammars.patience(pending))
    return grammars.result(spec, pending)


def _look(waiter: asyncio.Future[Grammar]) -> None:
    """Take note of the error: asyncio would log one that comes after `result` has given up."""
    if not waiter.cancelled():
        waiter.exception()


def _specs(body: GenerationRequest) -> Iterator[GrammarSpec]:
    if body.response_format is not None:
        spec = response_format_spec(body.response_format)
        if spec is not None:
            yield spec
    if body.structured_outputs is not None:
        spec = spec_of_options(body.structured_outputs, "structured_outputs")
        if spec is not None:
            yield spec
    check_backend(body.guided_decoding_backend, "guided_decoding_backend")
    spacing = body.guided_whitespace_pattern
    if spacing is not None and body.guided_json is None:
        raise RequestError(
            "guided_whitespace_pattern goes with guided_json", param="guided_whitespace_pattern"
        )
    for field, name in _FIELDS.items():
        value = getattr(body, field)
        if value is not None:
            style = JsonStyle(spacing) if field == "guided_json" else JsonStyle()
            yield spec_of_value(name, value, field, style)
