"""The Jinja environment in which chat templates run, and the limits that keep a template harmless.

Templates come with models from strangers, and from clients where the operator allows it. The
environment is Jinja's immutable sandbox, which closes attribute tricks; on top of it every render
has a budget: of loop rounds and calls together, of seconds, and of characters in any one value.
What grows a value in one stroke (repetition, widths, join, replace) is measured before it is done.
Nothing here knows about messages.

Extensions over plain Jinja are those of Hugging Face's chat templates: `raise_exception`,
`strftime_now`, a `tojson` that leaves HTML alone, loop controls and the `generation` tag.
"""

from __future__ import annotations

import functools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ROUNDS = 1_000_000  # loop rounds and calls of one render
MAX_SECONDS = 5.0  # of processor time: a machine that pauses must not change what a prompt says
MAX_CHARS = 1 << 24  # in the output, and in any text made on the way
MAX_ITEMS = 1 << 20  # in any list or object made on the way
_MAX_WIDTH = 1 << 16  # for an indent, a column, a batch
_WIDENING = {
    *("ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes"),  # methods
    *("indent", "batch", "slice", "round", "tojson"),  # filters; "center" too
}
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*?(\*|\d{6})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{6})")


class TemplateFailed(Exception):
    """What a template says with `raise_exception`, or the limit that it broke."""


class _Budget:
    """What one render may still spend."""

    def __init__(self) -> None:
        self.rounds = MAX_ROUNDS
        self.deadline = time.thread_time() + MAX_SECONDS

    def spend(self, rounds: int) -> None:
        self.rounds -= rounds
        if self.rounds < 0:
            raise TemplateFailed(f"the chat template runs over {MAX_ROUNDS} loop rounds and calls")
        if time.thread_time() > self.deadline:
            raise TemplateFailed(f"the chat template runs longer than {MAX_SECONDS:g} seconds")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """Compiles templates whose every loop and call is counted."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters["tojson"] = _tojson
        del self.globals["lipsum"]
        for name, function in list(self.filters.items()):
            self.filters[name] = _guarded(name, function)
        self.filters["_counted"] = _counted
        self.filters["_checked"] = _checked

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Jinja's parser, with each loop's iterable and each concatenation put under guard."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "_counted")
        return _GuardConcatenations().visit(tree)  # type: ignore[no-any-return]

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().spend(1)
        owner = getattr(__obj, "__self__", None)
        _check_growth(getattr(__obj, "__name__", ""), owner, args, kwargs)
        return _checked(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(value.__self__):
            raise TemplateFailed("the chat template formats with too large a width")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return _checked(super().call_binop(context, operator, left, right))


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Run a template within its limits. Raises TemplateFailed, a Jinja error, or any other."""
    token = _budget.set(_Budget())
    try:
        parts: list[str] = []
        length = 0
        for part in template.generate(variables):
            parts.append(part)
            length += len(part)
            if length > MAX_CHARS:
                raise TemplateFailed(f"the chat template writes over {MAX_CHARS} characters")
        return "".join(parts)
    finally:
        _budget.reset(token)


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks text to train on; here it is just text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _GuardConcatenations(jinja2.visitor.NodeTransformer):
    """`a ~ b` is no operator that the sandbox can intercept; check its result instead."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _filtered(self.generic_visit(node), "_checked")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _counted(iterable: Iterable[Any]) -> Iterable[Any]:
    """Charge a loop: at once where its length is known, else round by round."""
    budget = _budget.get()
    if isinstance(iterable, Sized):
        budget.spend(len(iterable))
        return iterable
    return _counting(iter(iterable), budget)


def _counting(iterator: Iterator[Any], budget: _Budget) -> Iterator[Any]:
    for item in iterator:
        budget.spend(1)
        yield item


def _checked(value: Any) -> Any:
    """Refuse a value that has grown too large to go on with."""
    if isinstance(value, (str, bytes)) and len(value) > MAX_CHARS:
        raise TemplateFailed(f"the chat template makes a text of over {MAX_CHARS} characters")
    if isinstance(value, (list, tuple, dict)) and len(value) > MAX_ITEMS:
        raise TemplateFailed(f"the chat template makes a list of over {MAX_ITEMS} items")
    if isinstance(value, int) and value.bit_length() > 4096:
        raise TemplateFailed("the chat template makes a number of over 4096 bits")
    return value


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse, before it is made, what an operator would blow up."""
    if operator == "*":
        for value, count in ((left, right), (right, left)):
            limit = MAX_CHARS if isinstance(value, (str, bytes)) else MAX_ITEMS
            is_repetition = isinstance(value, Sized) and isinstance(count, int)
            if is_repetition and len(value) * count > limit:
                raise TemplateFailed("the chat template repeats a value too often")
    elif operator == "**" and (abs(left) > 1 << 64 or abs(right) > 64):
        raise TemplateFailed("the chat template raises to too high a power")
    elif operator == "%" and isinstance(left, str) and _WIDE_PERCENT.search(left):
        raise TemplateFailed("the chat template formats with too large a width")


def _check_growth(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse, before it is made, what a method or filter `name` of `value` would blow up."""
    if name in _WIDENING:
        numbers = [item for item in (*args, *kwargs.values()) if isinstance(item, (int, float))]
        if any(abs(number) > _MAX_WIDTH for number in numbers):
            raise TemplateFailed(f"the chat template asks {name} for more than {_MAX_WIDTH}")
    elif name in ("join", "replace", "translate"):
        sizes = [len(item) for item in (value, *args, *kwargs.values()) if isinstance(item, Sized)]
        if len(sizes) > 1 and math.prod(sorted(sizes)[-2:]) > MAX_CHARS:
            raise TemplateFailed(f"the chat template asks {name} for too long a text")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter with its arguments and result checked; keeps the marks Jinja sets on functions."""
    skipped = int(hasattr(function, "jinja_pass_arg"))  # an environment or context comes first

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if name == "format" and _WIDE_PERCENT.search(str(args[skipped])):
            raise TemplateFailed("the chat template formats with too large a width")
        _check_growth(name, args[skipped], args[skipped + 1 :], kwargs)
        return _checked(function(*args, **kwargs))

    return guarded


def _raise_exception(message: object) -> None:
    raise TemplateFailed(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without Jinja's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
