"""How do clients' messages become what chat templates read?

Invariant: the order of turns is kept; content that we cannot show the model is refused by path,
never dropped in silence. Several text parts of one message are joined with a newline.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from mantle.core.errors import InvalidRequest
from mantle.gateway import field_checks as check
from mantle.text.port import ChatMessage

PART_JOINT = "\n"
OPENAI_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


class Part(msgspec.Struct):
    """A content part; only text can be served yet."""

    type: str
    text: str | None = None
    refusal: str | None = None


class OpenAIMessage(msgspec.Struct):
    """One message of `/v1/chat/completions`; further fields are ignored."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None


def from_openai(messages: Sequence[OpenAIMessage]) -> list[ChatMessage]:
    """Raises `InvalidRequest` with the path of what cannot be served."""
    if not messages:
        raise check.invalid("messages", "must hold at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: OpenAIMessage, path: str) -> ChatMessage:
    if message.role not in OPENAI_ROLES:
        check.one_of(message.role, f"{path}.role", OPENAI_ROLES)
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    extra: dict[str, Any] = {}
    if message.name is not None:
        extra["name"] = message.name
    if message.tool_calls:
        extra["tool_calls"] = [_with_object_arguments(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if isinstance(reasoning, str) and reasoning:
        extra["reasoning_content"] = reasoning
    return ChatMessage(role, _text(message.content, f"{path}.content"), extra)


def _text(content: str | list[Part] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return PART_JOINT.join(_part_text(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part_text(part: Part, path: str) -> str:
    if part.type not in _TEXT_PARTS:
        raise unsupported_part(part.type, path)
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise check.missing(f"{path}.{'refusal' if part.type == 'refusal' else 'text'}")
    return text


def unsupported_part(kind: str, path: str) -> InvalidRequest:
    return check.unsupported(
        path,
        f"is of type '{kind[:64]}', which this model cannot read",
        hint="send text only",
    )


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Templates iterate over `arguments`: JSON text becomes an object where it is one."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
