"""What may an output look like? JSON schemas, regular expressions and grammars, for llguidance.

Invariant: what compiles here compiles in the engine: the same library with the same limits. All of
it is CPU work for a thread of its own, bounded by `parser_limits`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from mantle.core import limits

_WHITESPACE: Final = r"( |\n {0,16})?"
"""Between two tokens of JSON: nothing, a space, or a line break with its indentation. Unbounded,
small models fill their whole output with it."""

_UNIMPLEMENTED: Final = re.compile(r"Unimplemented keys: \[(.*)\]")
_SCHEMA_MAPS: Final = ("properties", "$defs", "definitions", "patternProperties")
_SCHEMA_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS: Final = ("items", "additionalProperties", "not", "if", "then", "else", "contains")


class GrammarFault(ValueError):
    """It cannot be enforced. `pointer` is a JSON pointer into the schema, `keyword` what stands
    there, when they are known.
    """

    def __init__(self, reason: str, *, pointer: str = "", keyword: str = "") -> None:
        self.reason = reason
        self.pointer = pointer
        self.keyword = keyword
        place = f"{pointer}/{keyword}" if keyword else pointer
        super().__init__(f"at {place}: {reason}" if place else reason)


@dataclass(frozen=True, slots=True, repr=False)
class Grammar:
    """What llguidance takes, and the keywords that it leaves out of account (lenient only)."""

    source: str
    ignored: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Grammar({len(self.source)} characters)"


def parser_limits() -> LLParserLimits:
    """What a grammar may cost, at its compilation and at each token."""
    return LLParserLimits(
        max_grammar_size=limits.GRAMMAR_ITEMS_MAX,
        max_lexer_states=limits.GRAMMAR_LEXER_STATES_MAX,
    )


def from_json_schema(schema: dict[str, Any], *, lenient: bool) -> Grammar:
    """Text that is JSON of this schema. `lenient`: keywords that cannot be enforced are ignored.

    Raises `GrammarFault` with the place of what cannot be served.
    """
    warnings, error = _tried(schema, lenient=lenient)
    if error:
        raise _located(schema, error, lenient=lenient)
    return Grammar(_schema_source(schema, lenient=lenient), tuple(warnings))


def any_json_object() -> Grammar:
    """Any JSON object."""
    return from_json_schema({"type": "object"}, lenient=False)


def from_regex(pattern: str) -> Grammar:
    """Text that the whole pattern matches (Rust's regex syntax). Raises `GrammarFault`."""
    return _checked(LLMatcher.grammar_from_regex(pattern))


def from_choices(choices: list[str]) -> Grammar:
    """One of these texts. Raises `GrammarFault`."""
    if not choices:
        raise GrammarFault("there is nothing to choose from")
    return _checked(f"start: {' | '.join(json.dumps(choice) for choice in choices)}")


def from_lark(grammar: str) -> Grammar:
    """Text of a context-free grammar in Lark's notation. Raises `GrammarFault`."""
    return _checked(LLMatcher.grammar_from_lark(grammar))


def _checked(source: str) -> Grammar:
    _, error = _validated(source)
    if error:
        raise GrammarFault(error)
    return Grammar(source)


def _schema_source(schema: dict[str, Any], *, lenient: bool) -> str:
    overrides: Any = {"whitespace_pattern": _WHITESPACE, "lenient": lenient}
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides)
    except (RecursionError, ValueError):  # it was JSON before, so only its depth can be wrong
        raise GrammarFault("it is nested too deep") from None


def _tried(schema: Any, *, lenient: bool) -> tuple[list[str], str]:
    if not isinstance(schema, dict):
        return [], ""
    return _validated(_schema_source(schema, lenient=lenient))


def _validated(source: str) -> tuple[list[str], str]:
    """Warnings, and the error ("" when there is none)."""
    if len(source) > limits.GRAMMAR_CHARS_MAX:
        return [], f"it is longer than {limits.GRAMMAR_CHARS_MAX} characters"
    is_error, said = LLMatcher.validate_grammar_with_warnings(source, limits=parser_limits())
    return (said, "") if not is_error else ([], said[0] if said else "it cannot be compiled")


# --- where in the schema ------------------------------------------------------------------------
def _located(schema: dict[str, Any], error: str, *, lenient: bool) -> GrammarFault:
    """The deepest part that fails with the same words by itself."""
    named = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    pointer, part = "", schema
    for found_at, found in _parts(schema, ""):
        if not isinstance(found, dict) or not found_at:
            continue
        if _tried({**named, **found}, lenient=lenient)[1] == error:
            pointer, part = found_at, found
            break
    unimplemented = _UNIMPLEMENTED.match(error)
    keys = re.findall(r'"([^"]+)"', unimplemented[1]) if unimplemented else []
    keyword = next((key for key in keys if key in part), "")
    reason = "this keyword cannot be enforced" if keyword else error.splitlines()[0]
    return GrammarFault(reason, pointer=pointer, keyword=keyword)


def _parts(schema: Any, pointer: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All schemas within, the deepest first, each with its JSON pointer (RFC 6901)."""
    if not isinstance(schema, dict) or depth > limits.GRAMMAR_DEPTH_MAX:
        return
    for name in _SCHEMA_MAPS:
        children = schema.get(name)
        if isinstance(children, dict):
            for key, child in children.items():
                escaped = key.replace("~", "~0").replace("/", "~1")
                yield from _parts(child, f"{pointer}/{name}/{escaped}", depth + 1)
    for name in _SCHEMA_LISTS:
        children = schema.get(name)
        if isinstance(children, list):
            for index, child in enumerate(children):
                yield from _parts(child, f"{pointer}/{name}/{index}", depth + 1)
    for name in _SCHEMAS:
        yield from _parts(schema.get(name), f"{pointer}/{name}", depth + 1)
    yield pointer, schema
