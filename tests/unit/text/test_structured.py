"""Is what cannot be enforced refused with its place, and what can be compiled as it stands?"""

import json

import pytest

from mantle.core import limits
from mantle.text.structured import (
    GrammarFault,
    any_json_object,
    from_choices,
    from_json_schema,
    from_lark,
    from_regex,
)

STRING = {"type": "string"}


def nested(depth):
    schema = STRING
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_schema_becomes_a_grammar_with_bounded_whitespace():
    grammar = from_json_schema({"type": "object", "properties": {"a": STRING}}, lenient=False)
    assert "whitespace_pattern" in grammar.source
    assert grammar.ignored == ()
    assert "properties" not in repr(grammar)


def test_clients_cannot_unbound_the_whitespace():
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]*"}}
    grammar = json.loads(from_json_schema(schema, lenient=False).source)
    (inner,) = grammar["grammars"]
    assert inner["json_schema"]["x-guidance"]["whitespace_pattern"] != "[ ]*"


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"not": STRING}, "", "not"),
        ({"type": "array", "uniqueItems": True}, "", "uniqueItems"),
        (
            {"type": "object", "properties": {"a/b": {"anyOf": [STRING, {"not": STRING}]}}},
            "/properties/a~1b/anyOf/1",
            "not",
        ),
        (
            {"$defs": {"bad": {"if": STRING}}, "items": {"$ref": "#/$defs/bad"}},
            "/$defs/bad",
            "if",
        ),
        ({"properties": {"p": {"type": "string", "pattern": "(?=x)y"}}}, "/properties/p", ""),
        ({"properties": {"p": {"type": "hiccup"}}}, "/properties/p", ""),
        ({"items": {"$ref": "#/nope"}}, "/items", ""),
        ({"type": 123}, "", ""),
        ({"enum": []}, "", ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema, pointer, keyword):
    with pytest.raises(GrammarFault) as refused:
        from_json_schema(schema, lenient=False)
    assert (refused.value.pointer, refused.value.keyword) == (pointer, keyword)
    assert "\n" not in str(refused.value)


def test_lenient_ignores_keywords_and_says_which():
    schema = {"type": "array", "items": STRING, "uniqueItems": True}
    grammar = from_json_schema(schema, lenient=True)
    assert any("uniqueItems" in warning for warning in grammar.ignored)
    with pytest.raises(GrammarFault):
        from_json_schema({"type": "hiccup"}, lenient=True)


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_too_deep_is_refused_and_nothing_breaks(depth):
    with pytest.raises(GrammarFault):
        from_json_schema(nested(depth), lenient=True)


def test_too_long_is_refused():
    with pytest.raises(GrammarFault, match="longer"):
        from_regex("a" * (limits.GRAMMAR_CHARS_MAX + 1))


def test_other_kinds():
    assert any_json_object().source
    assert from_regex("[0-9]+").source
    assert from_choices(['say "hi"', "\\d"]).source
    assert from_lark('start: "a" | "b"').source
    for make, wrong in ((from_regex, "(a"), (from_lark, "start: nobody"), (from_choices, [])):
        with pytest.raises(GrammarFault):
            make(wrong)
