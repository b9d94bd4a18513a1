"""Streams: framing, usage chunks, silence, early and late failures (cases, section A)."""

import asyncio
from collections.abc import Callable

import pytest
from gateway_client import chat_text, message_text
from gateway_fakes import Harness, Script, chat_body, message_body, user

from mantle.core import limits
from mantle.core.errors import EngineFailed, JournalFault, ReplicaLost, WaitExceeded
from mantle.core.outcome import Outcome
from mantle.scheduler.port import QueueView


async def test_usage_comes_once_in_a_last_chunk_without_choices(gateway: Harness) -> None:
    reply = await gateway.chat(stream=True, stream_options={"include_usage": True})
    *before, last = reply.events
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == (
        last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    )
    assert [event["usage"] for event in before] == [None] * len(before)
    assert before[-1]["choices"][0]["finish_reason"] == "stop"
    assert reply.frames[-1] == "data: [DONE]"


@pytest.mark.parametrize("fields", [{}, {"stream_options": {}}, {"stream_options": None}])
async def test_no_usage_chunk_unless_asked_for(gateway: Harness, fields: dict) -> None:
    reply = await gateway.chat(stream=True, **fields)
    assert all(event["choices"] for event in reply.events)
    assert all("usage" not in event for event in reply.events)
    assert reply.frames[-1] == "data: [DONE]"


async def test_continuous_usage_counts_up_in_every_chunk(gateway: Harness) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await gateway.chat(stream=True, stream_options=options, n=2)
    counts = [event["usage"]["completion_tokens"] for event in reply.events]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert counts[0] == 0


async def test_all_chunks_share_id_and_time(gateway: Harness) -> None:
    reply = await gateway.chat(stream=True)
    assert len({(event["id"], event["created"]) for event in reply.events}) == 1
    assert reply.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_too_long_a_prompt_is_refused_before_the_first_byte(
    gateway: Harness, path: str, stream: bool
) -> None:
    text = "magic " + "x" * 9000
    body = {"model": "m", "max_tokens": 5, "messages": user(text), "prompt": text}
    reply = await gateway.call(path, {**body, "stream": stream})
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error["message"].startswith("prompt is too long: 90")
    assert "> 4095 maximum" in error["message"]
    if path != "/v1/messages":
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == ("prompt" if path == "/v1/completions" else "messages")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_lost_replica_in_mid_stream_is_an_error_frame_and_done(
    gateway: Harness, path: str
) -> None:
    gateway.script(("a",), ("b",), ReplicaLost("the worker died"))
    body = {"model": "m", "messages": user("x"), "prompt": "x", "stream": True}
    reply = await gateway.call(path, body)
    assert reply.status == 200
    assert reply.frames[-1] == "data: [DONE]"
    error = reply.events[-1]["error"]
    assert error == {
        "message": "the worker died",
        "type": "server_error",
        "param": None,
        "code": "replica_lost",
    }
    finishes = [c["finish_reason"] for e in reply.events[:-1] for c in e["choices"]]
    assert set(finishes) == {None}
    assert reply.is_complete
    assert gateway.metrics.of("request_finished")[0]["outcome"] is Outcome.FAILED


async def test_tokens_before_the_failure_are_still_sent(gateway: Harness) -> None:
    gateway.script(("a",), ("b",), ReplicaLost("gone"))
    reply = await gateway.chat(stream=True)
    assert chat_text(reply) == "ab"


async def test_lost_replica_on_messages_ends_with_an_error_event(gateway: Harness) -> None:
    gateway.script(("a",), ReplicaLost("the worker died"))
    reply = await gateway.messages(stream=True)
    assert reply.frames[-1].startswith("event: error\n")
    assert reply.events[-1]["error"]["type"] == "api_error"
    assert reply.events[-1]["request_id"] == reply.headers["request-id"]
    types = [event["type"] for event in reply.events]
    assert "message_stop" not in types
    assert "message_delta" not in types
    assert "content_block_stop" not in types


@pytest.mark.parametrize("error", [ReplicaLost("x"), EngineFailed("x"), JournalFault("x")])
@pytest.mark.parametrize("stream", [True, False])
async def test_failure_before_the_first_token_has_a_status(
    gateway: Harness, error: Exception, stream: bool
) -> None:
    gateway.script(error)
    reply = await gateway.chat(stream=stream)
    assert reply.status == 503
    assert reply.headers["content-type"] == "application/json"
    gateway.script(WaitExceeded("waited too long", retry_after_ms=7000))
    reply = await gateway.messages(stream=stream)
    assert reply.status == 529
    assert 7 <= int(reply.headers["retry-after"]) <= 9
    assert reply.json()["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_failing_branch_cancels_its_siblings(gateway: Harness, stream: bool) -> None:
    gateway.script(("a",), ReplicaLost("x"))
    gateway.admission.sibling_script = Script([asyncio.Event()])
    reply = await gateway.chat(stream=stream, n=3)
    assert [g.cancel_count for g in gateway.admission.generations] == [0, 1, 1]
    assert b"replica_lost" in reply.body
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_silent_message_stream_pings(make_harness: Callable[..., Harness]) -> None:
    gateway = make_harness(ping_s=0.01, stream_hold_s=0.01)
    release = asyncio.Event()
    gateway.script(("a",), release, ("b",))
    call = gateway.open("/v1/messages", message_body(stream=True))
    await call.until(b'event: ping\ndata: {"type":"ping"}\n\n')
    release.set()
    reply = await call.finished()
    assert message_text(reply) == "ab"
    assert reply.events[0]["type"] == "message_start"
    assert reply.events[-1]["type"] == "message_stop"


async def test_queued_stream_starts_after_the_hold_and_says_that_it_waits(
    make_harness: Callable[..., Harness],
) -> None:
    gateway = make_harness(ping_s=0.01, stream_hold_s=0.005)
    release = asyncio.Event()
    gateway.script(release, ("late",), view=QueueView(position=3, waited_ms=12.0))
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await call.until(b": queued position=3 waited_s=0.0\n\n")
    assert call.reply.status == 200
    assert call.reply.headers["x-mantle-queue-position"] == "3"
    release.set()
    assert chat_text(await call.finished()) == "late"


async def test_queued_message_stream_starts_with_its_real_input_tokens(
    make_harness: Callable[..., Harness],
) -> None:
    gateway = make_harness(ping_s=0.01, stream_hold_s=0.005)
    release = asyncio.Event()
    gateway.script(release, ("late",))
    call = gateway.open("/v1/messages", message_body(stream=True))
    await call.until(b"event: ping")
    start = call.reply.events[0]
    assert start["message"]["usage"]["input_tokens"] == len(gateway.admission.asks[0].prompt_tokens)
    release.set()
    await call.finished()


async def test_failure_after_the_hold_is_said_in_the_stream(
    make_harness: Callable[..., Harness],
) -> None:
    gateway = make_harness(ping_s=0.01, stream_hold_s=0.005)
    release = asyncio.Event()
    gateway.script(release, WaitExceeded("waited too long", retry_after_ms=1000))
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await call.until(b": working\n\n")
    release.set()
    reply = await call.finished()
    assert reply.events[-1]["error"]["message"] == "waited too long"
    assert reply.frames[-1] == "data: [DONE]"


async def test_two_streams_one_after_the_other_leave_nothing_behind(gateway: Harness) -> None:
    for _ in range(2):
        reply = await gateway.chat(stream=True)
        assert reply.is_complete
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [g.cancel_count for g in gateway.admission.generations] == [0, 0]


async def test_many_streams_at_once_all_end_with_done(gateway: Harness) -> None:
    replies = await asyncio.gather(*(gateway.chat(stream=True) for _ in range(200)))
    assert [reply.frames[-1] for reply in replies] == ["data: [DONE]"] * 200
    assert all(reply.is_complete for reply in replies)


@pytest.mark.parametrize("char", ["x", "漢", "\x01", '"', "🦀"])
async def test_no_line_is_longer_than_the_limit(gateway: Harness, char: str) -> None:
    text = char * 100_000
    gateway.script((text,))
    for reply, read in (
        (await gateway.chat(stream=True), chat_text),
        (await gateway.messages(stream=True), message_text),
    ):
        assert max(map(len, reply.body.split(b"\n"))) <= limits.SSE_LINE_BYTES_MAX
        assert read(reply) == text


async def test_ready_chunks_go_out_as_one_send(gateway: Harness) -> None:
    gateway.script(*[(char,) for char in "abcdefgh"])
    reply = await gateway.chat(stream=True)
    assert len(reply.sends) < 4
    assert chat_text(reply) == "abcdefgh"


async def test_choices_of_n_keep_their_texts_apart(gateway: Harness) -> None:
    reply = await gateway.chat(stream=True, n=3)
    assert [chat_text(reply, index) for index in range(3)] == ["hello world"] * 3
    whole = (await gateway.chat(n=3)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 6
    prompt_tokens = len(gateway.admission.asks[0].prompt_tokens)
    assert whole["usage"]["prompt_tokens"] == prompt_tokens
