"""Anthropic's format (cases, section F without tools)."""

from collections.abc import Callable
from typing import Any

import pytest
from gateway_client import message_text
from gateway_fakes import Harness, message_body, user

from mantle.core.outcome import FinishReason

BILLING = "x-anthropic-billing-header: cc_version=2; cch=123;"


def blocks(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": {"type": "x"}} for text in texts]


async def test_events_come_in_the_protocols_order(gateway: Harness) -> None:
    reply = await gateway.messages(stream=True)
    assert [event["type"] for event in reply.events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    for frame, event in zip(reply.frames, reply.events, strict=True):
        assert frame.startswith(f"event: {event['type']}\ndata: ")
    assert reply.events[0]["message"]["usage"]["input_tokens"] > 0
    assert reply.events[-2]["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_empty_answer_is_one_empty_block(gateway: Harness, stream: bool) -> None:
    gateway.script()
    reply = await gateway.messages(stream=stream)
    assert message_text(reply) == ""
    if stream:
        kinds = [event["type"] for event in reply.events]
        assert kinds[1:3] == ["content_block_start", "content_block_stop"]
    else:
        assert len(reply.json()["content"]) == 1


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.END, "end_turn"),
        (FinishReason.LENGTH, "max_tokens"),
        (FinishReason.WINDOW, "model_context_window_exceeded"),
    ],
)
async def test_stop_reasons(gateway: Harness, finish: FinishReason, reason: str) -> None:
    gateway.script(("a",), finish=finish)
    assert (await gateway.messages()).json()["stop_reason"] == reason
    assert (await gateway.messages(stream=True)).events[-2]["delta"]["stop_reason"] == reason


async def test_cached_tokens_are_counted_apart(gateway: Harness) -> None:
    gateway.script(("a",), cached_tokens=6)
    usage = (await gateway.messages()).json()["usage"]
    prompt_tokens = len(gateway.admission.asks[0].prompt_tokens)
    assert usage["cache_read_input_tokens"] == 6
    assert usage["input_tokens"] + 6 + usage["cache_creation_input_tokens"] == prompt_tokens
    details = (await gateway.chat()).json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 6


TOOLS = [{"name": f"t{i}", "input_schema": {"type": "object"}} for i in range(24)]


async def test_count_tokens_equals_the_usage_of_the_same_request(gateway: Harness) -> None:
    body = {
        "model": "m",
        "system": blocks(BILLING, "You are a coder.", "Be brief."),
        "messages": [*user(blocks("a", "b")), {"role": "system", "content": "Agents: none"}],
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
    }
    counted = await gateway.call("/v1/messages/count_tokens?beta=true", body)
    message = await gateway.call("/v1/messages?beta=true", {**body, "max_tokens": 5})
    assert counted.json() == {"input_tokens": message.json()["usage"]["input_tokens"]}
    assert counted.json()["input_tokens"] > 100


async def test_billing_line_never_reaches_the_template(gateway: Harness) -> None:
    await gateway.messages(system=blocks(BILLING, "Be brief."))
    await gateway.messages(system=f"{BILLING}\nBe brief.")
    await gateway.messages(system=blocks(BILLING))
    first, second, third = (chat[0] for chat in gateway.text.chats)
    assert [message.content for message in first] == ["Be brief.", "Hello"]
    assert [message.content for message in second] == ["Be brief.", "Hello"]
    assert [message.role for message in third] == ["user"]
    first_ask, second_ask, _ = gateway.admission.asks
    assert first_ask.prompt_tokens == second_ask.prompt_tokens


async def test_neighbours_of_one_role_become_one_turn(gateway: Harness) -> None:
    messages = [
        *user("a"),
        *user(blocks("b", "c")),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"},
                                          {"type": "text", "text": "d"}]},
        {"role": "developer", "content": "e"},
        *user("f"),
    ]  # fmt: skip
    assert (await gateway.messages(messages=messages)).status == 200
    turns = [(message.role, message.content) for message in gateway.text.chats[0][0]]
    assert turns == [
        ("user", "a\nb\nc"), ("assistant", "d"), ("system", "e"), ("user", "f"),
    ]  # fmt: skip


async def test_tool_blocks_in_history_are_rendered(gateway: Harness) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": blocks("42")}
    messages = [
        *user("x"),
        {"role": "assistant", "content": [*blocks("calling"), use]},
        *user([result, *blocks("go on")]),
    ]
    assert (await gateway.messages(messages=messages, tools=TOOLS[:1])).status == 200
    chat, tools, _ = gateway.text.chats[0]
    assert [message.role for message in chat] == ["user", "assistant", "tool", "user"]
    assert chat[1].extra["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (chat[2].content, chat[2].extra) == ("42", {"tool_call_id": "t1"})
    assert tools[0]["function"]["parameters"] == {"type": "object"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": user([{"type": "image", "source": {}}])}, "messages[0].content[0]"),
    ({"messages": user([{"type": "tool_result", "tool_use_id": "t",
                         "content": [{"type": "image"}]}])}, "messages[0].content[0].content[0]"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_refusals_name_the_field(gateway: Harness, fields: dict, param: str) -> None:
    reply = await gateway.messages(**fields)
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert f"'{param}'" in reply.json()["error"]["message"]


ACCEPTED: list[dict[str, Any]] = [
    {"context_management": {"edits": []}, "output_config": {"effort": "high"}},
    {"thinking": {"type": "adaptive"}, "cache_control": {"type": "ephemeral"}},
    {"metadata": {"user_id": "u"}, "tools": [], "mcp_servers": [], "container": None},
    {"temperature": 0.3, "top_p": 0.5, "top_k": 5},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tool_choice": {"type": "none"}},
    {"messages": [*user("x"), {"role": "assistant", "content": "no thinking first"}, *user("y")]},
    {"service_tier": "standard_only"},
]


@pytest.mark.parametrize("fields", ACCEPTED)
@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
async def test_what_clients_send_is_accepted(gateway: Harness, fields: dict, version: str) -> None:
    headers = {
        "anthropic-version": version,
        "anthropic-beta": "claude-code-20250219,effort-2025-11-24,unknown-2030-01-01",
    }
    reply = await gateway.call("/v1/messages", message_body(**fields), headers=headers)
    assert reply.status == 200


async def test_strict_version_refuses_sampling(make_harness: Callable[..., Harness]) -> None:
    gateway = make_harness(strict_api_version=True)
    body = message_body(temperature=0.3)
    new, old = {"anthropic-version": "2026-10-21"}, {"anthropic-version": "2023-06-01"}
    reply = await gateway.call("/v1/messages", body, headers=new)
    assert reply.status == 400
    assert "temperature" in reply.json()["error"]["message"]
    assert (await gateway.call("/v1/messages", body, headers=old)).status == 200
    assert (await gateway.call("/v1/messages", body)).status == 400


@pytest.mark.parametrize(
    ("asked", "served"),
    [("auto", "standard"), ("priority", "priority"), ("flex", "batch"), ("reserved", "priority")],
)
async def test_usage_names_the_served_tier(gateway: Harness, asked: str, served: str) -> None:
    reply = await gateway.messages(service_tier=asked)
    assert reply.json()["usage"]["service_tier"] == served
    assert gateway.admission.asks[0].service_tier == asked
