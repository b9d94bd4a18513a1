"""What must the output look like? Reads what each wire format says of it; compiling comes later.

Invariant: a format is either enforced to the letter or refused by name; only a schema that is not
`strict` may lose keywords, and then the reply says which.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mantle.core.errors import InvalidRequest
from mantle.gateway import field_checks as check
from mantle.text import structured
from mantle.text.structured import Grammar, GrammarFault

_RESPONSE_KINDS: Final = frozenset({"text", "json_object", "json_schema"})
_EXTENSIONS: Final = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True, repr=False)
class OutputFormat:
    """A grammar yet to be compiled. `param` names the field that asked for it."""

    param: str
    make: Callable[[], Grammar]

    def __repr__(self) -> str:
        return f"OutputFormat({self.param})"

    def compile(self) -> Grammar:
        """CPU work, off the event loop. Raises `InvalidRequest` with field, place and keyword."""
        try:
            return self.make()
        except GrammarFault as fault:
            raise InvalidRequest(
                f"'{self.param}' cannot be enforced: {fault}",
                param=self.param,
                code="invalid_json_schema",
            ) from None


def from_response_format(value: Any, param: str = "response_format") -> OutputFormat | None:
    """OpenAI's `response_format`, of chat. Raises `InvalidRequest`."""
    if value is None:
        return None
    kind = check.one_of(_object(value, param).get("type"), f"{param}.type", _RESPONSE_KINDS)
    if kind is None:
        raise check.missing(f"{param}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat(param, structured.any_json_object)
    inner = f"{param}.json_schema"
    if value.get("json_schema") is None:
        raise check.missing(inner)
    wanted = _object(value["json_schema"], inner)
    if not isinstance(wanted.get("name"), str):
        raise check.missing(f"{inner}.name")
    return from_schema(wanted.get("schema"), f"{inner}.schema", strict=bool(wanted.get("strict")))


def from_schema(schema: Any, param: str, *, strict: bool) -> OutputFormat:
    """A JSON schema that stands in the field `param`."""
    if schema is None:
        raise check.missing(param)
    found = _object(schema, param)
    return OutputFormat(param, lambda: structured.from_json_schema(found, lenient=not strict))


def from_extensions(wanted: Any, guided: dict[str, Any]) -> OutputFormat | None:
    """vLLM's `structured_outputs` and its older `guided_*` fields. Raises `InvalidRequest`."""
    given = {f"guided_{name}": (name, value) for name, value in guided.items() if value is not None}
    if wanted is not None:
        for name, value in _object(wanted, "structured_outputs").items():
            if name in _EXTENSIONS and value not in (None, False):
                given[f"structured_outputs.{name}"] = (name, value)
            elif value not in (None, False):
                raise check.unsupported(f"structured_outputs.{name[:64]}")
    if len(given) > 1:
        raise check.invalid(list(given)[1], f"cannot be combined with '{next(iter(given))}'")
    return next((_extension(param, *one) for param, one in given.items()), None)


def only_one(formats: list[OutputFormat | None]) -> OutputFormat | None:
    """The one that was given. Raises `InvalidRequest` when there are several."""
    given = [one for one in formats if one is not None]
    if len(given) > 1:
        raise check.invalid(given[1].param, f"cannot be combined with '{given[0].param}'")
    return given[0] if given else None


def _extension(param: str, name: str, value: Any) -> OutputFormat:
    if name == "json_object":
        return OutputFormat(param, structured.any_json_object)
    if name == "json":
        return from_schema(value, param, strict=True)
    if name == "choice":
        if not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise check.invalid(param, "must be a list of strings")
        return OutputFormat(param, lambda: structured.from_choices(value))
    if not isinstance(value, str):
        raise check.invalid(param, "must be a string")
    make = structured.from_regex if name == "regex" else structured.from_lark
    return OutputFormat(param, lambda: make(value))


def _object(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise check.invalid(param, "must be an object")
    return value
