"""Is this body well formed? Bytes to a typed struct, or `InvalidRequest` naming the field's path.

Invariant: whatever the bytes, the outcome is a struct or a 400/413; no decoder's own exception
and no lone surrogate goes further.
"""

import json
import re
from typing import Any, TypeVar

import msgspec

from mantle.core.errors import InvalidRequest

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]*)`$")


def check_media_type(content_type: str | None) -> None:
    """Raise unless the body claims to be JSON (or claims nothing)."""
    if content_type is None:
        return
    media_type = content_type.split(";", 1)[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequest(
            "content-type must be application/json",
            code="invalid_content_type",
            hint="send the header `content-type: application/json`",
        )


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """The struct in `raw`. Raises `InvalidRequest`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise _not_json(raw) from None


def _invalid_field(text: str) -> InvalidRequest:
    """msgspec's `Expected … - at `$.messages[0]`` as an error with the path as `param`."""
    at = _AT.search(text)
    path = at.group(1) if at else ""
    reason = text[: at.start()] if at else text
    missing = _MISSING.match(reason)
    if missing:
        param = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidRequest(
            f"missing required parameter: '{param}'",
            param=param,
            code="missing_required_parameter",
        )
    unknown = _UNKNOWN.match(reason)
    if unknown:
        param = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        return InvalidRequest(
            f"unknown parameter: '{param}'", param=param, code="unknown_parameter"
        )
    if not path:
        return InvalidRequest(f"the body must be a JSON object: {reason}", code="invalid_json")
    return InvalidRequest(f"invalid type for '{path}': {reason}", param=path, code="invalid_type")


def _not_json(raw: bytes) -> InvalidRequest:
    """The reason why `raw` is not acceptable JSON; the slow path, run on refusal only."""
    try:
        path = _surrogate_path(json.loads(raw.decode("utf-8")), "")
    except UnicodeDecodeError as error:
        return InvalidRequest(f"the body is not UTF-8 (byte {error.start})", code="invalid_json")
    except RecursionError:
        return InvalidRequest("the body is nested too deeply", code="invalid_json")
    except json.JSONDecodeError as error:
        return InvalidRequest(
            f"the body is not valid JSON (line {error.lineno}, column {error.colno})",
            code="invalid_json",
        )
    except ValueError:  # an integer of thousands of digits
        return InvalidRequest("the body holds a number that is too long", code="invalid_json")
    if path is None:
        return InvalidRequest("the body is not valid JSON", code="invalid_json")
    return InvalidRequest(
        f"'{path}' holds half of a surrogate pair, which is not a character",
        param=path,
        code="invalid_value",
        hint="send complete characters",
    )


def _surrogate_path(value: Any, path: str) -> str | None:
    """Path of the first string in `value` that holds a lone surrogate."""
    if isinstance(value, str):
        return path if _has_surrogate(value) else None
    if isinstance(value, list):
        children = [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    elif isinstance(value, dict):
        if any(_has_surrogate(key) for key in value):
            return path or "body"
        children = [(f"{path}.{key}" if path else key, child) for key, child in value.items()]
    else:
        return None
    for child_path, child in children:
        found = _surrogate_path(child, child_path)
        if found is not None:
            return found
    return None


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
