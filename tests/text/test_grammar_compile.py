"""What compiled grammars let through, over a byte-level tokenizer, and what is refused why."""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

import pytest
from helpers.fake_service import VOCAB, tokenizer
from helpers.grammars import (
    EOS_IDS,
    WIDTH,
    accepts,
    allowed_after,
    compiler,
    ids_of,
    tokens_of,
)

from tinyserve.errors import RequestError
from tinyserve.text.grammar import GrammarCompiler
from tinyserve.text.grammar_spec import GrammarSpec, Kind, choice_spec, json_schema_spec
from tinyserve.text.grammar_tokens import token_table

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def regex(value: str) -> GrammarSpec:
    return GrammarSpec("regex", value, param="p")


def lark(value: str) -> GrammarSpec:
    return GrammarSpec("lark", value, param="p")


def schema(value: Any) -> GrammarSpec:
    return json_schema_spec(value, "p")


def refusal(spec: GrammarSpec) -> str:
    with pytest.raises(RequestError) as caught:
        compiler().compile(spec)
    assert caught.value.param == spec.param
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (
            schema(PERSON),
            ['{"name":"x","age":3}', '{"name": "x", "age": 3}', '{\n  "name": "x",\n  "age": 3\n}'],
            ['{"name":"x"}', '{"age":3,"name":"x"}', '{"name":"x","age":"3"}', "[]", " {}", "{} "],
        ),
        (
            schema({"properties": {"a": {"items": {"type": "integer"}}}, "required": ["a"]}),
            ['{"a": [1, 2]}'],
            ["5", '"a"', '{"a": 5}', '{"a": {}}', "{}"],
        ),
        (
            schema({"type": "string", "minLength": 1.0, "maxLength": 2.0}),
            ['"a"', '"ab"'],
            ['""', '"abc"'],
        ),
        (
            GrammarSpec("json_object"),
            ["{}", '{"a": [1, {"b": null}], "c": "\\n"}'],
            ["[]", '"a"', "1", "{", '{"a"}', ""],
        ),
        (regex("(yes|no)!?"), ["yes", "no!"], ["maybe", "yes!!", ""]),
        (regex("^a+$"), ["a", "aaa"], ["", "ab"]),
        (regex("a/b\\/c\nd"), ["a/b/c\nd"], ["a/b"]),
        (choice_spec(["red", "green", 'x"\\y\n'], "p"), ["red", 'x"\\y\n'], ["re", "blue", ""]),
        (choice_spec(["", "a", "ab"], "p"), ["", "a", "ab"], ["b", "aab"]),
        (choice_spec(["ab", "abc", "b"], "p"), ["ab", "abc", "b"], ["a", "abcab"]),
        (lark('start: "a" b+\nb: "b" | "c"'), ["ab", "abcb"], ["a", "b"]),
        (
            lark('root ::= "I like " animal "."\nanimal ::= "cats" | [a-c]{2,3} "u\\u00e9"'),
            ["I like cats.", "I like abué."],
            ["I like dogs."],
        ),
        (lark('root ::= ("ab"+)*'), ["", "ab", "abab"], ["a", "aba"]),
        (lark('root ::= "<" ((("a")? )* ){2} ([b-c]{2,3} )? ">"'), ["<>", "<aabb>"], ["<b>", "a"]),
        (lark('root ::= "*)*" ([*)]+)? # (x*)*'), ["*)*", "*)*))"], ["", '*)*""']),
        (
            lark(
                'root ::=  # one of\n  start\n  | A-b # "x"\n\n  | a_b "|"\nstart ::= "\\n#"\n'
                'A-b ::= "A-b" a_b\na_b ::= [\n|] "c" | "d"'
            ),
            ["\n#", "A-bd", "A-b\nc", "d|", "|c|"],
            ["A-bA-b", "A-b", "x", "d"],
        ),
        (lark('start: "x" %json {"type": "integer"}'), ["x1", "x-20"], ["x", "x1.5"]),
    ],
    ids=lambda value: value.kind if isinstance(value, GrammarSpec) else "",
)
def test_each_kind_lets_through_what_it_says(
    spec: GrammarSpec, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not accepts(spec, text)] == []
    assert [text for text in wrong if accepts(spec, text)] == []


def test_thousands_of_choices() -> None:
    """GD-05: as fast as few."""
    for spec in (
        choice_spec([f"value number {i}" for i in range(5000)], "p"),
        schema({"enum": [f"value number {i}" for i in range(5000)]}),
    ):
        quote = "" if spec.kind == "choice" else '"'
        assert accepts(spec, f"{quote}value number 4999{quote}")
        assert not accepts(spec, f"{quote}value number 5000{quote}")


def test_every_kind_is_tried_above() -> None:
    assert set(get_args(Kind)) == {"json_schema", "json_object", "regex", "choice", "lark"}


WORDS = ["café", "日本", "😀", "é", "a\u0301"]


@pytest.mark.parametrize(
    "spec",
    [
        choice_spec(WORDS, "p"),
        regex("|".join(WORDS)),
        lark("start: " + " | ".join(json.dumps(word) for word in WORDS)),
        lark("root ::= " + " | ".join(f'"{word}"' for word in WORDS)),
    ],
    ids=["choice", "regex", "lark", "gbnf"],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_other_alphabets_byte_by_byte(spec: GrammarSpec, as_bytes: bool) -> None:
    """GD-09: characters of several bytes, whole or one byte at a time."""
    for word in WORDS:
        assert accepts(spec, word.encode() if as_bytes else word)
    assert not accepts(spec, "caf")
    assert not accepts(spec, "日")
    assert not accepts(spec, "café".encode()[:-1])


@pytest.mark.parametrize(
    ("gbnf", "good", "bad"),
    [
        (r'"é\u0041\U00000042"', "éAB", r"é\u0041B"),
        (r'"\u000a\u0022\u005c\x09"', '\n"\\\t', "n"),
        (r"[\u0041-\u005A]+", "AZ", "a"),
        (r'[^"\\\u007F\u0000-\u001F]+', "aé", "a\x7f"),
        (r"[\u005d\u005B\u005e\u002d]+", "[^]-", "\\"),
        (r"[a\-c]+", "a-c", "b"),
        (r'"\u0085" [\U0001F600-\U0001F64F]', "\x85😃", "\x85a"),
        (r'"\\u0041\\-"', r"\u0041\-", "A-"),
    ],
)
def test_gbnf_escapes(gbnf: str, good: str, bad: str) -> None:
    """GD-09: characters by their numbers, those of ASCII too."""
    assert accepts(lark(f"root ::= {gbnf}"), good)
    assert not accepts(lark(f"root ::= {gbnf}"), bad)


def test_other_alphabets_in_schemas() -> None:
    """GD-09: values and names of properties, quotes among them."""
    spec = schema(
        {
            "type": "object",
            "properties": {'naïve "q"': {"enum": WORDS}, "日": {"const": "😀"}},
            "required": ['naïve "q"', "日"],
        }
    )
    assert accepts(spec, '{"naïve \\"q\\"":"日本","日":"😀"}')
    assert not accepts(spec, '{"naïve \\"q\\"":"日","日":"😀"}')


@pytest.mark.parametrize(
    "spec",
    [
        regex(r"\d+"),
        regex(r"[\d]+"),
        regex(r"[+\d.-]+"),
        regex(r"[^\D]+"),
        schema({"type": "string", "pattern": r"^\d+$"}),
    ],
)
def test_digits_are_those_of_ascii(spec: GrammarSpec) -> None:
    quote = '"' if spec.kind == "json_schema" else ""
    assert accepts(spec, f"{quote}0123456789{quote}")
    for digits in ("٤٢", "🯸"):
        assert not accepts(spec, f"{quote}{digits}{quote}")


@pytest.mark.parametrize("pattern", [r"[\x00-\u2e7f]+", r"[^\x00-\x1f]*", r"\u65e5|\u{1f600}"])
def test_ranges_by_escapes(pattern: str) -> None:
    """GD-09: accepted, and then meant."""
    spec = regex(pattern)
    assert accepts(spec, "日" if "65e5" in pattern else "aé")


@pytest.mark.parametrize(
    ("idle", "busy"),
    [
        ({"uniqueItems": False}, {"uniqueItems": True}),
        ({"dependencies": {}}, {"dependencies": {"a": ["b"]}}),
        ({"propertyNames": {"type": "string"}}, {"propertyNames": {"pattern": "x"}}),
        ({"propertyNames": {}}, {"propertyNames": False}),
        ({"dependentRequired": {}}, {"dependentRequired": {"a": ["b"]}}),
        ({"dependentSchemas": {}}, {"dependentSchemas": {"a": False}}),
        ({"unevaluatedProperties": True}, {"unevaluatedProperties": False}),
        ({"unevaluatedItems": {}}, {"unevaluatedItems": 1}),
        ({"format": "password"}, {"type": "string", "format": "my-own"}),
    ],
)
def test_keywords_that_ask_for_nothing_are_no_hindrance(
    idle: dict[str, Any], busy: dict[str, Any]
) -> None:
    """Generators of schemas write them into every array and record."""
    array = {"type": "array", "items": {"type": "object", **idle}, **idle}
    assert accepts(schema({"type": "object", "properties": {"a": array}, **idle}), '{"a": [{}]}')
    assert list(busy)[-1] in refusal(schema({"type": "object", "properties": {"a": busy}}))
    named = {"type": "object", "properties": {key: {"type": "integer"} for key in idle}}
    assert not accepts(schema(named), json.dumps(dict.fromkeys(idle, "x")))  # a property so called


@pytest.mark.parametrize("most", [2**32, 2**53 - 1, 2**63 - 1, 1e308])
def test_the_largest_number_there_is_is_no_limit(most: float) -> None:
    """Regular expressions count no further than 2**32."""
    text = {"type": "string", "minLength": 1, "maxLength": most}
    spec = schema({"type": "array", "items": text, "maxItems": most})
    assert accepts(spec, '["a", "bc"]')
    assert not accepts(spec, '[""]')


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        ("integer", -(2**63), 2**63 - 1),
        ("integer", 0, 2**64 - 1),
        ("number", -3.4028234663852886e38, 3.4028234663852886e38),
        ("number", -(2**63), sys.float_info.max),
    ],
)
def test_the_bounds_of_a_type_are_followed(kind: str, least: float, most: float) -> None:
    """No regular expression is made for numbers that large."""
    bounds = {"minimum": least, "maximum": most}
    exclusive = {"exclusiveMinimum": least, "exclusiveMaximum": most}
    for said in (bounds, exclusive):
        spec = schema({"type": kind, **said})
        assert accepts(spec, "123456789012345678")
        assert accepts(spec, "-12") == (least < 0)
        assert not accepts(spec, "1" * 25)
    assert accepts(schema({"type": "integer", "maximum": 2**63 - 1}), str(2**62 + 1))


def test_names_of_properties_may_be_listed() -> None:
    """As pydantic writes dict[Literal["a", "b"], int], and zod z.record(z.enum(...), ...)."""
    number: dict[str, Any] = {"additionalProperties": {"type": "integer"}, "type": "object"}
    for names in ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"], "title": "Name"}):
        spec = schema({**number, "propertyNames": names})
        for right in ("{}", '{"a": 1}', '{"a": 1, "b": 2}'):
            assert accepts(spec, right)
        for wrong in ('{"c": 1}', '{"a": "x"}'):
            assert not accepts(spec, wrong)
        spec = schema({**number, "propertyNames": names, "required": ["a", "b"]})
        assert accepts(spec, '{"a": 1, "b": 2}')
        assert not accepts(spec, '{"a": 1}')
    listed = {"properties": {"x": {"type": "boolean"}, "y": {}}, "propertyNames": {"const": "x"}}
    assert accepts(schema({**number, **listed}), '{"x": true}')
    assert not accepts(schema({**number, **listed}), '{"y": 1}')
    named = {"properties": {"d": {**number, "propertyNames": {"$ref": "#/$defs/Of~1d"}}}}
    spec = schema({**named, "$defs": {"Of/d": {"enum": ["a"]}, "Other": {"$ref": "#/$defs/Other"}}})
    assert accepts(spec, '{"d": {"a": 1}}')
    assert not accepts(spec, '{"d": {"b": 1}}')
    for names in ({"$ref": "#/$defs/None"}, {"$ref": "#/$defs/Other"}, {"enum": [1]}, {"enum": 1}):
        inner = {**number, "propertyNames": names}
        assert "propertyNames" in refusal(schema({"properties": {"d": inner}, "$defs": {}}))


def test_patterns_describe_formats_that_are_not_known() -> None:
    """As zod writes z.nanoid(), z.string().startsWith("a") and others."""
    spec = schema({"type": "string", "format": "my-own", "pattern": "^[ab]{2}$"})
    assert accepts(spec, '"ab"')
    assert not accepts(spec, '"xy"')
    parts = [{"pattern": "^a.*"}, {"pattern": ".*z$"}]
    spec = schema({"type": "string", "format": "ends_with", "allOf": parts})
    assert accepts(spec, '"abcz"')
    assert not accepts(spec, '"abc"')
    spec = schema({"type": "string", "format": "date", "pattern": "^2.*$"})
    assert accepts(spec, '"2026-01-02"')
    assert not accepts(spec, '"2026"')


@pytest.mark.parametrize(
    "dialect",
    [
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/schema#",
        "https://spec.openapis.org/oas/3.1/dialect/base",
        "draft-07",
    ],
)
def test_no_dialect_is_looked_up(dialect: str) -> None:
    """One that is unknown, or misspelled, was looked for in vain, and the schema refused."""
    part = {"$schema": dialect, "type": "boolean"}
    spec = schema({"$schema": dialect, "type": "object", "properties": {"$schema": part}})
    assert accepts(spec, '{"$schema": true}')
    assert not accepts(spec, '{"$schema": 1}')


def test_end_tokens_padding_and_special_tokens() -> None:
    allowed = allowed_after(compiler().compile(regex("(?s:.)*")), "any text")
    assert allowed is not None
    assert set(EOS_IDS) <= allowed, "every end token ends"
    assert max(allowed) < VOCAB < WIDTH, "padding is never allowed"
    assert not allowed & (tokenizer().special_ids - set(EOS_IDS)), "nor are special tokens"
    matcher = compiler().compile(regex("a")).matcher()
    (mask,) = matcher.masks()
    assert mask.dtype == "uint32"
    assert len(mask) == -(-WIDTH // 32)
    assert ids_of(mask) == set(tokens_of("a")) | ({*range(VOCAB)} & _tokens_spelling("a"))


def _tokens_spelling(text: str) -> set[int]:
    return {i for i in range(VOCAB) if tokenizer().token_bytes(i) == text.encode()}


def test_a_special_token_may_be_named() -> None:
    start = tokenizer().special_id("<|im_start|>")
    spec = lark('start: "a" <|im_start|> "b"')
    assert allowed_after(compiler().compile(spec), "a") == {start}


def test_the_model_chooses_how_a_forced_text_is_cut() -> None:
    """All tokens that begin the rest may come, not the one that a tokenizer would choose."""
    allowed = allowed_after(compiler().compile(regex("and the thing")), "and")
    spelled = {
        i for i in range(VOCAB) if tokenizer().token_bytes(i) in (b" ", b" t", b" th", b" the")
    }
    assert allowed == spelled
    assert len(spelled) > 1


def test_a_run_of_drafts_is_masked_without_moving() -> None:
    matcher = compiler().compile(schema(PERSON)).matcher()
    right = tokens_of('{"name": "x", "age": 3}')
    masks = matcher.masks(right)
    assert len(masks) == len(right) + 1
    assert matcher.count_valid(right) == len(right)
    single = compiler().compile(schema(PERSON)).matcher()
    for mask, token in zip(masks, right, strict=False):
        assert (single.masks()[0] == mask).all()
        single.take(token)
    assert ids_of(masks[-1]) == set(EOS_IDS)
    wrong = [*right[:3], *tokens_of("}"), *right[3:]]
    assert matcher.count_valid(wrong) == 3
    assert len(matcher.masks(wrong)) == 4
    assert (matcher.masks()[0] == masks[0]).all(), "the matcher itself has not moved"


def test_drafts_that_no_logits_have_change_nothing() -> None:
    matcher = compiler().compile(regex("ab")).matcher()
    a, b = tokens_of("a")[0], tokens_of("b")[0]
    assert matcher.count_valid([a, WIDTH + 7, b]) == 1
    assert matcher.count_valid([WIDTH + 7]) == 0
    assert len(matcher.masks([a, WIDTH + 7, b])) == 2
    matcher.take(a)
    assert b in ids_of(matcher.masks()[0])


def test_no_mask_is_made_after_an_end_among_the_drafts() -> None:
    matcher = compiler().compile(regex("a*")).matcher()
    masks = matcher.masks([*tokens_of("a"), EOS_IDS[1], *tokens_of("a")])
    assert len(masks) == 2


def test_choices_of_one_grammar_do_not_meet() -> None:
    grammar = compiler().compile(regex("a+|b+"))
    first, second = grammar.matcher(), grammar.matcher()
    first.take(tokens_of("a")[0])
    second.take(tokens_of("b")[0])
    assert tokens_of("b")[0] not in ids_of(first.masks()[0])
    assert tokens_of("a")[0] not in ids_of(second.masks()[0])


@pytest.mark.parametrize("depth", [0, 3])
def test_whitespace_ends_somewhere(depth: int) -> None:
    """Models that like line breaks must not be able to write them for ever."""
    text = '{"a":' * depth + "{"
    grammar = compiler().compile(GrammarSpec("json_object"))
    longest = max(
        count
        for count in range(60)
        if allowed_after(grammar, text + "\n" + " " * count) is not None
    )
    assert 20 <= longest <= 40
    assert allowed_after(grammar, text + "\n\n") is None
    assert allowed_after(grammar, text + "   ") is None


def test_thinking_may_come_first() -> None:
    spec = GrammarSpec("json_schema", json.dumps(PERSON), after="</think>")
    answer = '{"name": "x", "age": 3}'
    assert accepts(spec, f'what {{"now"?\n</think>\n\n{answer}')
    assert not accepts(spec, answer)
    optional = GrammarSpec("json_schema", json.dumps(PERSON), may_think=True)
    assert accepts(optional, answer)
    assert accepts(optional, f"<think>hm</think>{answer}")
    assert not accepts(optional, f"hm</think>{answer}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (schema({"properties": {"a": {"$ref": "#/missing"}}}), "missing"),
        (schema({"type": "strin"}), "strin"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"type": "string", "format": "my-own"}), "my-own"),
        (schema({"type": "string", "minLength": 5, "maxLength": 2}), "minLength"),
        (schema({"enum": []}), "nsatisfiable"),
        (schema({"$ref": "#"}), "no text"),
        (schema({"$ref": "https://example.com/schema"}), "example.com"),
        (regex("(a"), "unclosed"),
        (regex("(?=a)b"), "look-around"),
        (lark("foo"), "Expected"),
        (lark('root ::= "a'), "GBNF"),
        (lark("root ::= " + "(" * 5000 + '"a"' + ")" * 5000), "nested"),
        (lark("root ::= foo"), "foo"),
        (lark("root ::= x\n" + "".join(f"x{i} ::= x\n" for i in range(600))), "500 rules"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(spec: GrammarSpec, words: str) -> None:
    """GD-02: a grammar is never followed in part."""
    assert words in refusal(spec)
    assert accepts(regex("fine"), "fine"), "the next one works"


def _nested_one_of(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for level in range(depth):
        branches = [
            {
                "type": "object",
                "properties": {f"{name}{level}": inner},
                "required": [f"{name}{level}"],
            }
            for name in "ab"
        ]
        inner = {"oneOf": branches}
    return inner


def _refs(depth: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
        for i in range(depth)
    }
    return {"$defs": {**defs, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "spec",
    [
        regex("(a|aa)+$"),
        regex("([a-z]{1,200}){1,200}"),
        regex("((a{1,100}){1,100}){1,100}"),
        regex("(a?){1000}a{1000}"),
        regex("(.*a.{20})"),
        regex("(x+x+)+y"),
        regex("|".join(f"w{i}[a-z]+x" for i in range(5000))),
        schema(_nested_one_of(7)),
        schema(_refs(60)),
        schema({"type": "string", "maxLength": 100_000}),
        schema({"type": "string", "pattern": "^(ab|a|b)*$", "minLength": 50_000}),
        schema({"type": "array", "minItems": 100_000, "items": {"maxLength": 1000}}),
        schema({"enum": [f"value number {i * 7919 % 100_003}" for i in range(5000)]}),
        schema({"multipleOf": 62_615_533}),
        lark("\n" * 250_000),
        lark("a" * 250_000),
        lark(" " * 250_000 + "::="),
        lark("root ::= " + "\\" * 60_000),
        regex("\\" * 250_000),
        regex("/" * 250_000),
        schema({"description": "multipleOf" * 20_000}),
        schema({"allOf": [{"pattern": f"^.*{c}.*$"} for c in "abcdefghijkl"], "type": "string"}),
        schema({"properties": {f"p{i}": {"type": "string"} for i in range(3000)}}),
        lark('start: x{1,1000}\nx: y{1,1000}\ny: z{1,1000}\nz: "a"'),
        lark('start: s\ns: s s | s s s | "a" | '),
        lark("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(15_000)) + 'r15000: "a"'),
        lark("start: R0\n" + "".join(f"R{i}:R{i + 1}\n" for i in range(15_000)) + 'R15000: "a"'),
    ],
)
def test_hard_grammars_work_or_are_refused(spec: GrammarSpec) -> None:
    """GD-05: explosions of every kind, chains that would overflow a stack among them."""
    error = _follow(spec)
    if error is not None:
        assert error.param in ("p", None)
        assert "grammar" in str(error) or "multipleOf" in str(error)
        assert len(str(error)) < 800
    assert accepts(regex("fine"), "fine"), "the next one works"


def _follow(spec: GrammarSpec) -> RequestError | None:
    """Compile, and go some tokens; what stopped it."""
    try:
        matcher = compiler().compile(spec).matcher()
        for _ in range(10):
            (mask,) = matcher.masks()
            matcher.take(max(ids_of(mask)))
    except RequestError as error:
        return error
    return None


def test_a_model_without_an_end_token_has_no_grammars() -> None:
    for eos_ids in ((), (WIDTH + 5,)):
        with pytest.raises(RequestError, match="end token"):
            GrammarCompiler(tokenizer(), WIDTH, eos_ids).compile(regex("a"))
        with pytest.raises(RequestError, match="end token"):
            token_table(tokenizer(), WIDTH, eos_ids)


def test_a_lone_surrogate_is_no_character() -> None:
    assert "surrogate" in refusal(regex("a\ud800"))
