"""From a `GrammarSpec` to the text that llguidance compiles. Compiles nothing itself.

Owns what is added to, or refused of, what a client wrote: bounded whitespace in JSON, tokens chosen
by the model also where the text is forced, GBNF read as Lark, and the one kind of schema known to
take the compiler minutes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from tinyserve.errors import RequestError
from tinyserve.text.grammar_spec import GrammarSpec
from tinyserve.text.reasoning import CLOSER, OPENER

MAX_CHARACTERS = 1 << 18  # bounds how deep the compiler recurses; see `grammar.STACK_BYTES`
MAX_GBNF_CHARACTERS = 1 << 16  # its converter is plain Python, and quadratic in rules
MAX_GBNF_RULES = 500

# Between the tokens of JSON: a blank or two, or a line break and its indentation. JSON allows any
# number, but small models then write blanks without end.
WHITESPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,40}"

# The model chooses how a forced text is cut into tokens; by default llguidance would.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

_GBNF_RULE = re.compile(r"^[ \t]*[\w.-]+[ \t]*::=", re.M)
_LITERAL = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]'  # in GBNF: a text, or a class of characters

# The automaton of "a multiple of m" has m states, which nothing in the compiler bounds.
MAX_MULTIPLE = 20_000
MAX_DIGITS = 40
_MULTIPLE_OF = re.compile(r'"multipleOf"\s*:\s*([-+0-9.eE]+)')
_COMBINING = re.compile(r'"(?:allOf|anyOf|oneOf|\$ref)"\s*:')

SpecialId = Callable[[str], int | None]


def source_of(spec: GrammarSpec, special_id: SpecialId) -> str:
    """llguidance's serialized grammar. Raises RequestError.

    `special_id`: the id of a special token by its text, None for what is ordinary text.
    """
    top = {"name": "top", "lark_grammar": _beginning(spec, special_id) + _OPTIONS}
    grammars = [top, {"name": "answer", **_answer(spec)}]
    if spec.or_else is not None:
        grammars.append({"name": "other", **_answer(spec.or_else)})
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _beginning(spec: GrammarSpec, special_id: SpecialId) -> str:
    """The rules of what comes before the constraint: thinking, or nothing."""
    answer = "@answer" if spec.or_else is None else "(@answer | @other)"
    if spec.after is None and not spec.may_think:
        return f"start: {answer}\n"
    begin, end = OPENER, spec.after or CLOSER
    begin_id, end_id = special_id(begin), special_id(end)
    opener = json.dumps(begin) if begin_id is None else f"<[{begin_id}]>"
    if end_id is None:
        thinking = f"thinking[suffix={json.dumps(end)}]: /(?s:.*)/"
    else:
        thinking = f"thinking: /(?s:.*)/ <[{end_id}]>"
    first = "thinking SPACE" if spec.after is not None else f"({opener} thinking SPACE)?"
    return f"start: {first} {answer}\n{thinking}\nSPACE: /[ \\n]{{0,2}}/\n"


def _answer(spec: GrammarSpec) -> dict[str, Any]:
    if len(spec.value) > MAX_CHARACTERS:
        raise RequestError(
            f"the grammar has {len(spec.value)} characters; at most {MAX_CHARACTERS} are accepted",
            param=spec.param,
        )
    if spec.kind == "json_object":
        return {"json_schema": _bounded({"type": "object"})}
    if spec.kind == "json_schema":
        schema = json.loads(spec.value)
        _check_multiples(spec.value, spec.param)
        return {"json_schema": _bounded(schema)}
    if spec.kind == "choice":
        # One terminal: as rules, thousands of choices would be thousands of parses at once.
        choices = " | ".join(json.dumps(choice) for choice in json.loads(spec.value))
        return {"lark_grammar": f"start: CHOICE\nCHOICE: {choices}\n"}
    if spec.kind == "regex":
        return {"lark_grammar": f"start: /{_regex_literal(spec.value)}/\n"}
    _check_multiples(spec.value, spec.param)
    return {"lark_grammar": _as_lark(spec)}


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with bounded whitespace, unless it says how it wants it."""
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict) or options.keys() & {
        "whitespace_pattern",
        "whitespace_flexible",
    }:
        return schema
    return {**schema, "x-guidance": {**options, "whitespace_pattern": WHITESPACE}}


def _regex_literal(regex: str) -> str:
    """The expression as it stands between the slashes of a Lark terminal.

    Digits are those that everybody means, as in JSON schema; Unicode has hundreds of others, which
    small models do write.
    """
    written = {"/": r"\/", r"\d": "[0-9]", r"\D": "[^0-9]"}  # within brackets, too
    literal = re.sub(r"\\.|/", lambda m: written.get(m[0], m[0]), regex, flags=re.S)
    return literal.replace("\n", r"\n")


def _as_lark(spec: GrammarSpec) -> str:
    if not _GBNF_RULE.search(spec.value):
        return spec.value
    if len(spec.value) > MAX_GBNF_CHARACTERS or spec.value.count("::=") > MAX_GBNF_RULES:
        raise RequestError(
            f"a GBNF grammar may have at most {MAX_GBNF_RULES} rules and {MAX_GBNF_CHARACTERS} "
            "characters; larger ones are welcome as Lark",
            param=spec.param,
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        plain = _with_distinct_names(_with_joined_lines(_without_escapes(spec.value)))
        return str(gbnf_to_lark(_with_nested_repeats(plain)))
    except RecursionError:
        raise RequestError("the grammar is nested too deeply", param=spec.param) from None
    except Exception as error:  # the converter has an exception of its own, and plain ones
        raise RequestError(f"the grammar is not valid GBNF: {error}", param=spec.param) from None


def _without_escapes(gbnf: str) -> str:
    r"""\u00e9 as the letter itself, \u0041 as \x41: the converter shortens such escapes until
    nobody reads them. And `\-`, which xgrammar knows, as \x2d.
    """

    def character(match: re.Match[str]) -> str:
        code = int(match[2] or match[3] or "2d", 16)
        if code < 0x80:  # it may stand for a quote, a bracket, or a line break
            return f"{match[1]}\\x{code:02x}"
        is_character = code < 0x110000 and not 0xD800 <= code < 0xE000
        return match[1] + chr(code) if is_character else match[0]

    escape = r"(?<!\\)((?:\\\\)*)\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|-)"
    return re.sub(escape, character, gbnf)


def _with_joined_lines(gbnf: str) -> str:
    """Alternatives may stand on lines of their own, as xgrammar reads them; comments are gone."""
    bare = re.sub(rf"({_LITERAL})|#[^\n]*", lambda m: m[1] or "", gbnf)
    return re.sub(rf"({_LITERAL})|\s*\n\s*\|", lambda m: m[1] or " |", bare)


def _with_distinct_names(gbnf: str) -> str:
    """Rules under names that stay apart in Lark, where one called `start` is the first, case says
    what is a terminal, and hyphens are underscores.
    """
    names: dict[str, str] = {}
    taken = {"start"}
    for name in re.findall(rf"{_LITERAL}|([\w-]+)\s*::=", gbnf):
        folded = name.lower().replace("-", "_")
        if name and name not in names:
            names[name] = f"{name}_{len(names)}_" if folded in taken else name
            taken.add(folded)
    return re.sub(rf"({_LITERAL})|[\w-]+", lambda m: m[1] or names.get(m[0], m[0]), gbnf)


def _with_nested_repeats(gbnf: str) -> str:
    """`("a"?)*` as `("a"? "")*`: the converter would leave the parentheses out."""
    repeat = rf"{_LITERAL}|([*+?}}])(?=\s*\)\s*[*+?{{])"
    return re.sub(repeat, lambda m: f'{m[1]} ""' if m[1] else m[0], gbnf)


def _check_multiples(text: str, param: str | None) -> None:
    """Refuse divisors that would keep the compiler busy for minutes."""
    text = re.sub(r"\\u00([2-7][0-9a-fA-F])", lambda m: chr(int(m[1], 16)), text)
    values = sorted({match[1] for match in _MULTIPLE_OF.finditer(text)})
    if values and _num_states(values, bool(_COMBINING.search(text))) > MAX_MULTIPLE:
        raise RequestError(
            f"multipleOf {', '.join(values[:5])}: too large to follow digit by digit "
            f"(at most {MAX_MULTIPLE} in all, trailing zeros apart)",
            param=param,
        )


def _num_states(values: Sequence[str], can_combine: bool) -> int:
    """How many remainders have to be told apart; for all at once where a schema may ask for that.

    Zeros at the end of a divisor cost nothing.
    """
    parsed = [_digits_of(value) for value in values]
    if None in parsed:
        return MAX_MULTIPLE + 1
    numbers = [pair for pair in parsed if pair is not None]
    size = sum(_without_zeros(digits) for digits, _ in numbers)
    if size > MAX_MULTIPLE or not can_combine:
        return size
    lowest = min(exponent for _, exponent in numbers)
    common = 1
    for digits, exponent in numbers:
        common = math.lcm(common, digits * 10 ** (exponent - lowest) or 1)
        if common > 10**MAX_DIGITS:
            return MAX_MULTIPLE + 1
    return max(size, _without_zeros(common))


def _digits_of(value: str) -> tuple[int, int] | None:
    """ "0.25" as (25, -2); None for more digits than anyone means."""
    try:
        _, digits, exponent = Decimal(value).as_tuple()
    except InvalidOperation:
        return 0, 0  # llguidance will say what is wrong with it
    if not isinstance(exponent, int) or abs(exponent) > MAX_DIGITS or len(digits) > MAX_DIGITS:
        return None
    return int("".join(map(str, digits))), exponent


def _without_zeros(number: int) -> int:
    while number and number % 10 == 0:
        number //= 10
    return number
