"""What is accepted, what is refused, and how refusals name the field (cases, sections B, J)."""

import asyncio
import json
from typing import Any

import pytest
from gateway_fakes import KEY, Harness, chat_body, message_body, user

PATHS = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"model": "m", "prompt": "x"},
    "/v1/messages": message_body(),
    "/v1/messages/count_tokens": message_body(),
}


def error_text(reply: Any) -> str:
    return str(reply.json()["error"]["message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"{", b"", b"\xff", b"[" * 100_000, b"1", b"NaN"])
async def test_body_that_is_no_object_is_400(gateway: Harness, path: str, raw: bytes) -> None:
    reply = await gateway.call(path, raw)
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in reply.body.decode()


@pytest.mark.parametrize("path", PATHS)
async def test_wrong_content_type_is_400(gateway: Harness, path: str) -> None:
    reply = await gateway.call(path, PATHS[path], headers={"content-type": "text/plain"})
    assert reply.status == 400
    assert "content-type" in error_text(reply)


async def test_charset_on_the_content_type_is_fine(gateway: Harness) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert (await gateway.call("/v1/chat/completions", chat_body(), headers=headers)).status == 200


LONE = [
    ("/v1/chat/completions", rb'"messages":[{"role":"user","content":"cut \ud83d"}]',
     "messages[0].content"),
    ("/v1/completions", rb'"prompt":"cut \ud83d"', "prompt"),
    ("/v1/completions", rb'"prompt":["ok","\udc00"]', "prompt[1]"),
    ("/v1/messages", rb'"max_tokens":5,"messages":[{"role":"user","content":"cut \ud83d"}]',
     "messages[0].content"),
    ("/v1/messages", rb'"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result",'
     rb'"tool_use_id":"t","content":[{"type":"text","text":"\ud83d x"}]}]}]',
     "messages[0].content[0].content[0].text"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), LONE)
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_lone_surrogate_is_refused_by_path(
    gateway: Harness, path: str, fields: bytes, param: str, stream: bytes
) -> None:
    reply = await gateway.call(path, b'{"model":"m","stream":' + stream + b"," + fields + b"}")
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert f"'{param}'" in error_text(reply)
    assert "codec" not in error_text(reply)


async def test_paired_surrogate_escape_is_a_character(gateway: Harness) -> None:
    raw = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    assert (await gateway.call("/v1/chat/completions", raw)).status == 200
    assert gateway.text.chats[0][0][0].content == "😀"


WRONG = [
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"model": None}, "model", "invalid_type"),
    ({"max_tokens": "7"}, "max_tokens", "invalid_type"),
    ({"max_tokens": -5}, "max_tokens", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"temperature": 2.5}, "temperature", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"top_p": 1.5}, "top_p", "invalid_value"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 129}, "n", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stop": "x" * 1025}, "stop", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"100000": 1}}, "logit_bias", "invalid_value"),
    ({"service_tier": "gold"}, "service_tier", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "unsupported_parameter"),
    ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"min_tokens": 3}, "min_tokens", "unsupported_parameter"),
    ({"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},
     "messages[0].content[0]", "unsupported_parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "code"), WRONG)
@pytest.mark.parametrize("stream", [True, False])
async def test_wrong_field_is_400_with_its_path(
    gateway: Harness, fields: dict, param: str, code: str, stream: bool
) -> None:
    reply = await gateway.chat(**fields, stream=stream)
    error = reply.json()["error"]
    assert reply.status == 400
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"
    assert gateway.admission.generations == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/messages", "max_tokens"),
        ("/v1/messages", "model"),
    ],
)
async def test_missing_field_is_named(gateway: Harness, path: str, field: str) -> None:
    body = {key: value for key, value in PATHS[path].items() if key != field}
    reply = await gateway.call(path, body)
    assert reply.status == 400
    assert f"'{field}'" in error_text(reply)


ACCEPTED: list[dict[str, Any]] = [
    {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u"},
    {"messages": [{"role": "user", "content": "x", "id": "1", "agent": "a"}]},
    {"tool_choice": "none"},
    {"tool_choice": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": [], "parallel_tool_calls": True},
    {"response_format": {"type": "text"}},
    {"modalities": ["text"], "prediction": None, "reasoning_effort": "low", "verbosity": "low"},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": None, "top_logprobs": None, "n": None, "stop": None, "max_tokens": None},
    {"stop": []},
    {"seed": -1},
    {"seed": 2**70},
    {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True},
    {"temperature": 0, "top_p": 0, "logit_bias": {"5": -100}},
    {"min_tokens": 0},
    {"prompt_cache_key": "k", "safety_identifier": "s", "extra_unknown": [1]},
]


@pytest.mark.parametrize("fields", ACCEPTED)
async def test_what_clients_send_is_accepted(gateway: Harness, fields: dict) -> None:
    assert (await gateway.chat(**fields)).status == 200


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_parts_arrays_in_every_role(gateway: Harness, role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": parts, "tool_call_id": "t"}, *user("x")]
    assert (await gateway.chat(messages=messages)).status == 200
    seen = gateway.text.chats[0][0][0]
    assert seen.content == "a\nb"
    assert seen.role == ("system" if role == "developer" else role)


async def test_history_with_null_content_and_tool_calls(gateway: Harness) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    broken = {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages = [
        *user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call, broken]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    assert (await gateway.chat(messages=messages)).status == 200
    assistant, tool = gateway.text.chats[0][0][1:]
    assert assistant.content == ""
    functions = [call["function"] for call in assistant.extra["tool_calls"]]
    assert [function["arguments"] for function in functions] == [{"a": 1}, "{"]
    assert tool.extra["tool_call_id"] == "c"


async def test_tools_reach_the_template(gateway: Harness) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await gateway.chat(tools=tools, chat_template_kwargs={"enable_thinking": False})
    assert gateway.text.chats[0][1:] == (tools, {"enable_thinking": False})


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
async def test_chat_without_max_tokens_runs_to_the_window(gateway: Harness, fields: dict) -> None:
    await gateway.chat(**fields)
    assert gateway.admission.asks[0].max_output_tokens is None


async def test_max_completion_tokens_wins(gateway: Harness) -> None:
    reply = await gateway.chat(max_completion_tokens=1, max_tokens=9)
    assert gateway.admission.asks[0].max_output_tokens == 1
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("max_tokens", [32_000, 128_000])
async def test_max_tokens_above_the_window_is_no_error(gateway: Harness, max_tokens: int) -> None:
    assert (await gateway.chat(max_tokens=max_tokens)).status == 200
    assert (await gateway.messages(max_tokens=max_tokens)).status == 200


async def test_sampling_reaches_admission(gateway: Harness) -> None:
    await gateway.chat(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.2, logit_bias={"9": 2, "5": -1.5}, seed=2**64 + 7, stop="s", n=2,
        service_tier="fast", ignore_eos=True,
    )  # fmt: skip
    ask = gateway.admission.asks[0]
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert sampling.logit_bias == ((5, -1.5), (9, 2))
    assert (sampling.seed, sampling.repetition_penalty, sampling.min_p) == (7, 1.2, 0.1)
    assert (ask.n, ask.stop_strings, ask.service_tier, ask.ignore_eos) == (
        2, ("s",), "priority", True,
    )  # fmt: skip


async def test_seeds_differ_when_not_given(gateway: Harness) -> None:
    await gateway.chat()
    await gateway.chat()
    first, second = (ask.sampling.seed for ask in gateway.admission.asks)
    assert first != second


@pytest.mark.parametrize(
    ("asked", "served"),
    [(None, "default"), ("priority", "priority"), ("flex", "flex"), ("reserved", "scale")],
)
async def test_reply_names_the_served_tier(
    gateway: Harness, asked: str | None, served: str
) -> None:
    assert (await gateway.chat(service_tier=asked)).json()["service_tier"] == served
    events = (await gateway.chat(service_tier=asked, stream=True)).events
    assert {event["service_tier"] for event in events} == {served}


async def test_body_over_the_limit_is_413(make_harness: Any) -> None:
    gateway = make_harness(body_bytes_max=1000)
    for path, kind in (("/v1/chat/completions", "invalid_request_error"),
                       ("/v1/messages", "request_too_large")):  # fmt: skip
        for headers in ({}, {"content-length": "5000"}):
            reply = await gateway.call(path, b"x" * 2000, headers=headers)
            assert reply.status == 413
            assert reply.json()["error"]["type"] == kind


async def test_deadline_header_reaches_admission(gateway: Harness) -> None:
    path = "/v1/chat/completions"
    await gateway.call(path, chat_body(), headers={"x-mantle-deadline-ms": "5000"})
    assert gateway.admission.asks[0].deadline_ms > 0
    reply = await gateway.call(path, chat_body(), headers={"x-mantle-deadline-ms": "soon"})
    assert reply.status == 400


async def test_text_of_the_client_is_in_no_log_or_error(
    gateway: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    await gateway.chat(messages=user("SECRET"))
    await gateway.messages(messages=user("SECRET"))
    await gateway.chat(messages=[{"role": "user", "content": ["SECRET"]}])
    logged = [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert len([line for line in logged if "request finished" in line]) == 3
    assert not any("SECRET" in line or KEY in line for line in logged)


async def test_body_that_does_not_come_is_408(make_harness: Any) -> None:
    harness = make_harness(body_idle_s=0.01)
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()  # the rest never comes
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer sk-test"), (b"content-length", b"100")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    await harness.app({**scope, "query_string": b""}, receive, send)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["type"] == "timeout"
