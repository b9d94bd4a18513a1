"""How do Anthropic's content blocks become what chat templates read?

Invariant: the order of turns is kept, neighbours of one role become one turn; thinking and the
billing line are dropped on purpose, everything else that the model cannot read is refused by path.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mantle.gateway import field_checks as check
from mantle.gateway.chat_messages import PART_JOINT, unsupported_part
from mantle.text.port import ChatMessage

BILLING_PREFIX: Final = "x-anthropic-billing-header:"
"""Claude Code's first system block; it changes with every request and would kill prefix reuse."""

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_DROPPED: Final = frozenset({"thinking", "redacted_thinking"})


class Block(msgspec.Struct):
    """A content block of any type; only the fields that we read."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None


class AnthropicMessage(msgspec.Struct):
    """One turn; further fields are ignored."""

    role: str
    content: str | list[Block] | None = None


def to_chat(
    system: str | list[Block] | None, messages: Sequence[AnthropicMessage]
) -> list[ChatMessage]:
    """Raises `InvalidRequest` with the path of what cannot be served."""
    if not messages:
        raise check.invalid("messages", "must hold at least one message")
    turns = _system_turns(system)
    for index, message in enumerate(messages):
        for turn in _turns(message, f"messages[{index}]"):
            if turns and _can_merge(turns[-1], turn):
                turns[-1] = _merged(turns[-1], turn)
            else:
                turns.append(turn)
    return turns


def _system_turns(system: str | list[Block] | None) -> list[ChatMessage]:
    if isinstance(system, str):
        first, _, rest = system.partition("\n")
        text = rest if first.startswith(BILLING_PREFIX) else system
    else:
        text = PART_JOINT.join(
            block_text
            for index, block in enumerate(system or ())
            if not (block_text := _block_text(block, f"system[{index}]")).startswith(BILLING_PREFIX)
        )
    return [ChatMessage("system", text)] if text else []


def _turns(message: AnthropicMessage, path: str) -> list[ChatMessage]:
    """One turn, or several where tool results stand beside text."""
    check.one_of(message.role, f"{path}.role", _ROLES)
    role = "system" if message.role == "developer" else message.role
    if message.content is None or isinstance(message.content, str):
        return [ChatMessage(role, message.content or "")]
    turns: list[ChatMessage] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        block_path = f"{path}.content[{index}]"
        if block.type == "tool_result":
            turns.append(_tool_result(block, block_path))
        elif block.type == "tool_use":
            calls.append(_tool_call(block, block_path))
        elif block.type not in _DROPPED:
            texts.append(_block_text(block, block_path))
    if texts or calls or not turns:
        extra = {"tool_calls": calls} if calls else {}
        turns.append(ChatMessage(role, PART_JOINT.join(texts), extra))
    return turns


def _block_text(block: Block, path: str) -> str:
    if block.type != "text":
        raise unsupported_part(block.type, path)
    if block.text is None:
        raise check.missing(f"{path}.text")
    return block.text


def _tool_call(block: Block, path: str) -> dict[str, Any]:
    if block.name is None:
        raise check.missing(f"{path}.name")
    function = {"name": block.name, "arguments": block.input if block.input is not None else {}}
    return {"id": block.id or "", "type": "function", "function": function}


def _tool_result(block: Block, path: str) -> ChatMessage:
    if block.tool_use_id is None:
        raise check.missing(f"{path}.tool_use_id")
    content = block.content
    if isinstance(content, list):
        texts = []
        for index, part in enumerate(content):
            part_path = f"{path}.content[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                raise unsupported_part(str(kind), part_path)
            texts.append(part["text"])
        content = PART_JOINT.join(texts)
    elif content is not None and not isinstance(content, str):
        raise check.invalid(f"{path}.content", "must be a string or a list of blocks")
    return ChatMessage("tool", content or "", {"tool_call_id": block.tool_use_id})


def _can_merge(before: ChatMessage, after: ChatMessage) -> bool:
    return before.role == after.role and before.role != "tool"


def _merged(before: ChatMessage, after: ChatMessage) -> ChatMessage:
    texts = [text for text in (before.content, after.content) if text]
    calls = [*before.extra.get("tool_calls", ()), *after.extra.get("tool_calls", ())]
    return ChatMessage(before.role, PART_JOINT.join(texts), {"tool_calls": calls} if calls else {})
