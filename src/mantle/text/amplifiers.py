"""Which filters and methods can turn little into much? Their arguments are checked before they run.

Invariant: each check costs no more than reading the arguments once.
"""

from collections.abc import Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2.runtime import Undefined

from mantle.core.limits import TEMPLATE_JSON_PADDING_CHARS_MAX, TEMPLATE_NODES_MAX
from mantle.text.render_budget import RenderBudget, refuse

COUNTING_FILTERS: Final = frozenset({"batch", "center", "indent", "slice", "truncate", "round"})
"""Filters whose later arguments are widths or counts."""

LISTING_FILTERS: Final = frozenset({"list", "sort", "unique", "batch", "slice", "groupby"})
"""Filters that make a list of all characters when given a text."""


def check_filter(
    budget: RenderBudget, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuse `args[0] | name(args[1:], kwargs)` when its result could be huge."""
    value, rest = args[0] if args else None, (*args[1:], *kwargs.values())
    if name in COUNTING_FILTERS:
        budget.check_counts(rest)
    if name in LISTING_FILTERS and isinstance(value, str) and len(value) > TEMPLATE_NODES_MAX:
        refuse("a text is too long to be listed")
    if name == "replace":
        old, new = (*args[1:], *(kwargs.get(key) for key in ("old", "new")[len(args) - 1 :]))[:2]
        budget.before_replace(str(budget.charge(value)), old, new)
    elif name == "format" and isinstance(value, str):
        budget.before_format(value, rest)
    elif name == "indent":
        width = args[1] if len(args) > 1 else kwargs.get("width", 4)
        budget.before_indent(str(budget.charge(value)), width)
    elif name == "tojson":
        _check_json_padding(rest)
    elif name == "sum":
        start = args[2] if len(args) > 2 else kwargs.get("start", 0)
        if not isinstance(start, int | float | Undefined):
            refuse("only numbers can be summed")


def check_method(
    budget: RenderBudget,
    method: BuiltinMethodType | MethodType,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Refuse `text.method(args)` when its result could be huge; returns the arguments to use."""
    text, name = method.__self__, method.__name__
    if not isinstance(text, str | bytes):
        return args
    budget.check_counts((*args, *kwargs.values()))
    if name == "replace" and isinstance(text, str):
        old, new = (*args, None, None)[:2]
        budget.before_replace(text, old, kwargs.get("new", new))
    elif name == "format":
        budget.before_format(text, (list(args), dict(kwargs)))
    elif name in ("split", "rsplit", "splitlines"):
        budget.before_split(text, args[0] if args else kwargs.get("sep"))
    elif name == "join" and args:
        parts = list(args[0]) if not isinstance(args[0], list | tuple) else args[0]
        if isinstance(text, str):
            budget.joined(text, parts)
        else:
            refuse("bytes cannot be joined")
        return (parts, *args[1:])
    return args


def _check_json_padding(options: tuple[Any, ...]) -> None:
    """`indent` and `separators` are written once a value: they must be short."""
    for option in options:
        pieces = option if isinstance(option, list | tuple) else (option,)
        for piece in pieces:
            chars = len(piece) if isinstance(piece, str) else piece
            if isinstance(chars, int) and chars > TEMPLATE_JSON_PADDING_CHARS_MAX:
                refuse("JSON padding is too wide")
