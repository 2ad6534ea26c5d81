"""Which constraint a request puts on its answer's text, under any of the names that clients use.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`, SGLang's and
llama-server's top-level fields. Compiles nothing. Whatever is not understood is refused: a
constraint that was asked for is never ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from tinyserve.errors import RequestError
from tinyserve.server.chat_context import ChatContext
from tinyserve.server.protocol import GenerationRequest
from tinyserve.text.grammar import Grammar, GrammarCompiler
from tinyserve.text.grammar_spec import (
    GrammarSpec,
    JsonStyle,
    check_backend,
    json_schema_spec,
    spec_of_options,
    spec_of_value,
)

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
_PARAM = "response_format"
_FORMATS = "'text', 'json_object' or 'json_schema'"


def spec_of(body: GenerationRequest) -> GrammarSpec | None:
    """The one constraint of a request, None where it has none. Raises RequestError."""
    found = list(_specs(body))
    if len(found) > 1:
        names = " and ".join(dict.fromkeys(str(spec.param) for spec in found))
        raise RequestError(f"{names} exclude each other: send one constraint", param=found[1].param)
    return found[0] if found else None


def chat_spec(context: ChatContext) -> GrammarSpec | None:
    """The same for a conversation. What the model thinks before its answer stays free.

    Where the answer has to be calls of tools, that is the constraint; where the model may choose,
    calls stay possible beside an answer that keeps to its own. Raises RequestError.
    """
    spec, form, tools = spec_of(context.body), context.message_format, context.tools
    if tools is not None and tools.is_forced:
        if spec is not None:
            raise RequestError(
                f"{spec.param} cannot go with a tool_choice that demands calls", param=spec.param
            )
        spec = form.calls_spec(tools, context.tokenizer.special_id)
    elif tools is not None and spec is not None:
        spec = replace(spec, or_else=form.calls_spec(tools, context.tokenizer.special_id))
    return None if spec is None else form.after_thinking(spec, context.thinking)


def size_of(body: GenerationRequest) -> int:
    """About how many characters a request's constraints take."""
    fields = (body.response_format, body.structured_outputs, *(getattr(body, f) for f in _FIELDS))
    return sum(len(str(value)) for value in fields if value is not None)


async def compiled(grammars: GrammarCompiler, spec: GrammarSpec) -> Grammar:
    """The grammar of `spec`, compiled while the event loop goes on. Raises what `compile` does."""
    pending = grammars.submit(spec)
    if not pending.done():
        waiter = asyncio.wrap_future(pending)
        waiter.add_done_callback(_look)
        await asyncio.wait({waiter}, timeout=grammars.patience(pending))
    return grammars.settle(spec, pending)


def _look(waiter: asyncio.Future[Grammar]) -> None:
    """`settle` deals with errors; asyncio would complain of those that come later."""
    if not waiter.cancelled():
        waiter.exception()


def _specs(body: GenerationRequest) -> Iterator[GrammarSpec]:
    if body.response_format is not None:
        spec = _response_format(body.response_format)
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


def _response_format(value: Mapping[str, Any]) -> GrammarSpec | None:
    kind = value.get("type")
    if kind == "text":
        _only(value, {"type"})
        return None
    if kind == "json_object":
        # llama-server and others take a schema here.
        _only(value, {"type", "schema"})
        schema = value.get("schema")
        if schema is None:
            return GrammarSpec("json_object", param=_PARAM)
        return json_schema_spec(_object(schema), _PARAM)
    if kind == "json_schema":
        _only(value, {"type", "json_schema", "schema"})
        return json_schema_spec(_object(_schema_of(value)), _PARAM)
    if kind == "structural_tag":
        _refuse("type 'structural_tag' is not supported; use json_schema, or tools")
    if "type" not in value:
        _refuse(f"type is missing; it must be {_FORMATS}")
    return _refuse(f"type must be {_FORMATS}, not {kind!r:.100}")


def _schema_of(value: Mapping[str, Any]) -> Any:
    """The schema of {"type": "json_schema", "json_schema": {"name", "schema", ...}}."""
    wrapper = value.get("json_schema")
    if wrapper is None and value.get("schema") is not None:
        return value["schema"]
    if wrapper is None:
        _refuse("type 'json_schema' needs json_schema: {'name': ..., 'schema': {...}}")
    if not isinstance(wrapper, Mapping):
        _refuse("json_schema must be an object: {'name': ..., 'schema': {...}}")
    if value.get("schema") is not None:
        _refuse("schema belongs inside json_schema")
    _only(wrapper, {"name", "schema", "strict", "description"}, "json_schema.")
    for key, kinds, words in (
        ("name", str, "a string"),
        ("description", str, "a string"),
        ("strict", bool, "true or false"),
    ):
        if wrapper.get(key) is not None and not isinstance(wrapper[key], kinds):
            _refuse(f"json_schema.{key} must be {words}")
    if wrapper.get("schema") is None:
        _refuse("json_schema.schema is missing")
    return wrapper["schema"]


def _object(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        _refuse(f"the schema must be an object, not {type(schema).__name__}")
    return schema


def _only(value: Mapping[str, Any], known: set[str], where: str = "") -> None:
    for key, item in value.items():
        if key not in known and item is not None:
            _refuse(f"{where}{key:.100} is not a field of it")


def _refuse(message: str) -> NoReturn:
    raise RequestError(f"{_PARAM}: {message}", param=_PARAM)
