"""`GrammarSpec`: what the text of an answer must be, as a plain value.

Compiled by `text/grammar.py`. Also owns the names under which a client asks for one
(`structured_outputs` of the HTTP interface and of `SamplingParams`), so that both read the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tinyserve.errors import RequestError
from tinyserve.text.grammar_schema import (
    is_exact,
    with_additional,
    with_closed_objects,
    with_known_keywords,
    with_types,
    without_idle,
)

Kind = Literal["json_schema", "json_object", "regex", "choice", "lark"]

_CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar")
_WHITESPACE = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


@dataclass(frozen=True)
class GrammarSpec:
    """One constraint."""

    kind: Kind
    # By kind: a JSON schema (JSON text), nothing, a regular expression, texts (a JSON list), or a
    # grammar (llguidance's dialect of Lark, which may hold `%json {...}`; or GBNF).
    value: str = ""
    # What ends the free text that comes first, where the prompt has opened the model's thinking.
    after: str | None = None
    may_think: bool = False  # the model may open thinking itself
    or_else: GrammarSpec | None = None  # what the text may be instead
    param: str | None = field(default=None, compare=False)  # the request's field, for errors


def spec_of_options(options: Mapping[str, Any], param: str) -> GrammarSpec | None:
    """The constraint that `structured_outputs` asks for; None where it names none.

    Names and meanings are vLLM's. Null means absent. Raises RequestError for more than one
    constraint, and for what is unknown or not supported: nothing is ever ignored.
    """
    if not isinstance(options, Mapping):
        raise RequestError(f"{param} must be an object", param=param)
    given = {k: v for k, v in options.items() if v is not None}
    if given.get("json_object") is False:
        del given["json_object"]
    for name in given:
        if name == "structural_tag":
            raise RequestError(
                f"{param}.{name}: structural tags are not supported; use json, or tools",
                param=f"{param}.{name}",
            )
        if name not in (*_CONSTRAINTS, *_WHITESPACE, "disable_fallback", "backend"):
            raise RequestError(f"{param} has no option {name!r}", param=f"{param}.{name}")
    named = [name for name in _CONSTRAINTS if name in given]
    if len(named) > 1:
        raise RequestError(
            f"{param} may hold one constraint, not several: {', '.join(named)}", param=param
        )
    check_backend(given.get("backend"), f"{param}.backend")
    style = JsonStyle.of(given, param)
    if not named:
        if style.asks:
            raise RequestError(f"{param} names no constraint to apply its options to", param=param)
        return None
    name = named[0]
    return spec_of_value(name, given[name], f"{param}.{name}", style)


def spec_of_value(name: str, value: Any, param: str, style: JsonStyle | None = None) -> GrammarSpec:
    """The constraint called json, json_object, regex, choice or grammar. Raises RequestError."""
    style = style or JsonStyle()
    if name == "json":
        return json_schema_spec(value, param, style)
    if name == "json_object":
        if value is not True:
            raise RequestError(f"{param} must be true or false", param=param)
        if style.options:
            return json_schema_spec({"type": "object"}, param, style)
        return GrammarSpec("json_object", param=param)
    if style.asks:
        raise RequestError(
            f"{param}: options of JSON's spacing and properties go with json only", param=param
        )
    if name == "choice":
        return choice_spec(value, param)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{param} must be a string, and not empty", param=param)
    return GrammarSpec("regex" if name == "regex" else "lark", value, param=param)


def json_schema_spec(schema: Any, param: str, style: JsonStyle | None = None) -> GrammarSpec:
    """JSON by a schema: an object, or its JSON text. Raises RequestError."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{param} is not valid JSON: {error}", param=param) from None
    if not isinstance(schema, Mapping):
        raise RequestError(f"{param} must be a JSON schema, which is an object", param=param)
    try:
        schema = with_known_keywords(without_idle(schema))
        has_exact_numbers = is_exact(schema)
        schema = (style or JsonStyle()).apply(with_types(schema))
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{param} is not JSON: {error}", param=param) from None
    if not has_exact_numbers:
        raise RequestError(
            f"{param}: integers of more than 53 bits cannot be followed exactly", param=param
        )
    return GrammarSpec("json_schema", text, param=param)


def choice_spec(choices: Any, param: str) -> GrammarSpec:
    """Exactly one of some texts. Raises RequestError."""
    if not isinstance(choices, list | tuple) or not choices:
        raise RequestError(f"{param} must be a list of strings, and not empty", param=param)
    if not all(isinstance(choice, str) for choice in choices):
        raise RequestError(f"{param} must hold only strings", param=param)
    return GrammarSpec("choice", json.dumps(list(choices), ensure_ascii=False), param=param)


def check_backend(name: Any, param: str) -> None:
    """There is one back end; a request that insists on another is refused."""
    if name not in (None, "auto", "guidance", "llguidance"):
        raise RequestError(
            f"{param}: {name!r} is not available; the one back end is 'guidance'", param=param
        )


@dataclass(frozen=True)
class JsonStyle:
    """How JSON may be laid out, and whether objects that list their properties may have others;
    None: by `text/grammar_schema.py`.
    """

    whitespace_pattern: str | None = None
    is_compact: bool = False
    is_closed: bool | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], param: str) -> JsonStyle:
        """The style that whitespace_pattern, disable_any_whitespace and
        disable_additional_properties ask for. Raises RequestError.
        """
        pattern = options.get("whitespace_pattern")
        if pattern is not None and not isinstance(pattern, str):
            name = f"{param}.whitespace_pattern"
            raise RequestError(f"{name} must be a string", param=name)
        flags: list[bool | None] = []
        for flag in ("disable_any_whitespace", "disable_additional_properties", "disable_fallback"):
            value = options.get(flag)
            if not isinstance(value, bool | None):
                raise RequestError(f"{param}.{flag} must be true or false", param=f"{param}.{flag}")
            flags.append(value)
        if pattern is not None and flags[0]:
            raise RequestError(
                f"{param}: whitespace_pattern and disable_any_whitespace exclude each other",
                param=param,
            )
        return cls(pattern, bool(flags[0]), flags[1])

    @property
    def asks(self) -> bool:
        """Whether it asks for anything; an option that is off does not."""
        return self.whitespace_pattern is not None or self.is_compact or bool(self.is_closed)

    @property
    def options(self) -> dict[str, Any]:
        """llguidance's JSON options, as a schema's `x-guidance` holds them."""
        if self.is_compact or self.whitespace_pattern == "":
            return {"whitespace_flexible": False}
        if self.whitespace_pattern is not None:
            return {"whitespace_pattern": self.whitespace_pattern}
        return {}

    def apply(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema with this style in it; its own `x-guidance` gives way."""
        if self.is_closed is None:
            schema = with_closed_objects(schema)
        else:
            schema = with_additional(schema, not self.is_closed)
        own = schema.get("x-guidance", {})
        if not self.options or not isinstance(own, Mapping):
            return schema
        return {**schema, "x-guidance": {**own, **self.options}}
