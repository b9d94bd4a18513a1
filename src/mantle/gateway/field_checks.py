"""Is this field's value one that we can serve? Range checks shared by all wire formats.

Invariant: a refusal is an `InvalidRequest` that names the field in `param`.
"""

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mantle.core import limits
from mantle.core.errors import InvalidRequest


def invalid(param: str, reason: str, *, hint: str = "") -> InvalidRequest:
    return InvalidRequest(f"'{param}' {reason}", param=param, code="invalid_value", hint=hint)


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"missing required parameter: '{param}'", param=param, code="missing_required_parameter"
    )


def unsupported(
    param: str, reason: str = "is not supported here", *, hint: str = ""
) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' {reason}", param=param, code="unsupported_parameter", hint=hint
    )


def number(value: float | None, param: str, *, low: float, high: float, default: float) -> float:
    """`value` within [low, high], `default` when not given."""
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(param, f"must be between {low:g} and {high:g}")
    return value


def whole(value: int | None, param: str, *, low: int, high: int, default: int) -> int:
    """As `number`, for whole numbers."""
    return int(number(value, param, low=low, high=high, default=default))


def one_of(value: str | None, param: str, allowed: Collection[str]) -> str | None:
    """`value`, which must be one of `allowed` when given."""
    if value is not None and value not in allowed:
        names = ", ".join(f"'{name}'" for name in sorted(allowed))
        raise invalid(param, f"must be one of {names}")
    return value


def stop_strings(value: str | list[str] | None, param: str) -> tuple[str, ...]:
    """Stop strings, one or many."""
    stops = [value] if isinstance(value, str) else list(value or ())
    if len(stops) > limits.STOP_STRINGS_MAX:
        raise invalid(param, f"may hold at most {limits.STOP_STRINGS_MAX} strings")
    for index, stop in enumerate(stops):
        path = param if isinstance(value, str) else f"{param}[{index}]"
        if not stop:
            raise invalid(path, "must not be empty")
        if len(stop) > limits.STOP_STRING_CHARS_MAX:
            raise invalid(path, f"is longer than {limits.STOP_STRING_CHARS_MAX} characters")
    return tuple(stops)


def logit_bias(value: dict[str, float] | None, param: str) -> tuple[tuple[int, float], ...]:
    """(token id, bias), sorted by id."""
    if not value:
        return ()
    if len(value) > limits.LOGIT_BIAS_ENTRIES_MAX:
        raise invalid(param, f"may hold at most {limits.LOGIT_BIAS_ENTRIES_MAX} entries")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid(param, "keys must be token ids")
        biases[int(key)] = number(bias, param, low=-100, high=100, default=0)
    return tuple(sorted(biases.items()))


def seed(value: int | None) -> int:
    """64 bits; drawn at random when the client gave none."""
    return random.getrandbits(64) if value is None else value & (2**64 - 1)


def refuse_given(fields: Mapping[str, Any]) -> None:
    """Refuse fields that would change the output and that we cannot serve, when given."""
    for param, value in fields.items():
        if value not in (None, False, 0, "", [], {}):
            raise unsupported(param)


def check_token_ids(token_ids: Iterable[int], param: str, *, vocab_size: int) -> None:
    """Raise unless all are ids of the model's vocabulary."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(param, f"holds a token id outside the vocabulary (0 to {vocab_size - 1})")
