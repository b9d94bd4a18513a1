"""The client leaves: everything stops at once, nothing is left behind (cases, section I)."""

import asyncio
import json
import logging

import pytest
from gateway_fakes import Harness, chat_body, message_body

from mantle.core.outcome import Outcome

PATHS = [
    ("/v1/chat/completions", chat_body()),
    ("/v1/completions", {"model": "m", "prompt": "x"}),
    ("/v1/messages", message_body()),
]


async def _entered(gateway: Harness, count: int = 1) -> None:
    """Wait until `count` generations are being read."""
    for _ in range(count):
        await asyncio.wait_for(gateway.admission.reads.acquire(), 5)


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [(), (("a",),)], ids=["waiting", "decoding"])
async def test_departure_cancels_at_once(
    gateway: Harness,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict,
    stream: bool,
    first: tuple,
) -> None:
    caplog.set_level(logging.INFO, "mantle.gateway")
    gateway.script(*first, asyncio.Event(), ("never",))
    call = gateway.open(path, {**body, "stream": stream})
    await _entered(gateway)
    call.disconnect()
    await call.finished()
    assert [g.cancel_count for g in gateway.admission.generations] == [1]
    finished = gateway.metrics.of("request_finished")[0]
    assert (finished["outcome"], finished["status"]) == (Outcome.CANCELLED, 499)
    assert gateway.metrics.of("tokens_used")[0]["output_tokens"] == len(first)
    assert caplog.records[-1].status == 499
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_departure_cancels_all_branches(gateway: Harness) -> None:
    gateway.script(asyncio.Event())
    call = gateway.open("/v1/chat/completions", chat_body(n=4, stream=True))
    await _entered(gateway, 4)
    call.disconnect()
    await call.finished()
    assert [g.cancel_count for g in gateway.admission.generations] == [1, 1, 1, 1]


async def test_request_whose_client_left_before_admission_never_enters(gateway: Harness) -> None:
    call = gateway.open("/v1/chat/completions", chat_body())
    call.disconnect()
    await call.finished()
    entered = gateway.admission.generations
    assert all(generation.cancel_count for generation in entered)
    assert gateway.metrics.of("request_finished")[0]["outcome"] is Outcome.CANCELLED
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_departures_at_random_moments_leak_nothing(gateway: Harness) -> None:
    gateway.script(("a",), asyncio.Event())
    calls = [
        gateway.open("/v1/chat/completions", chat_body(n=4, stream=index % 2 == 0))
        for index in range(100)
    ]
    for index, call in enumerate(calls):
        for _ in range(index % 7):
            await asyncio.sleep(0)
        call.disconnect()
    await asyncio.gather(*(call.finished() for call in calls))
    assert all(g.cancel_count == 1 for g in gateway.admission.generations)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    finished = gateway.metrics.of("request_finished")
    assert len(finished) == 100
    assert {values["outcome"] for values in finished} == {Outcome.CANCELLED}


async def test_departure_during_the_body_is_no_error(gateway: Harness) -> None:
    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []

    async def receive() -> dict:
        return messages.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"x-api-key", b"sk-test"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers}
    await gateway.app(scope, receive, send)
    assert sent == []
    assert gateway.metrics.of("request_finished")[0]["status"] == 499


async def test_departure_cancels_while_a_send_is_stuck(gateway: Harness) -> None:
    stuck, left, unblock = asyncio.Event(), asyncio.Event(), asyncio.Event()
    messages = [{"type": "http.request", "body": json.dumps(chat_body(stream=True)).encode()}]

    async def receive() -> dict:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.body":
            stuck.set()
            await unblock.wait()

    gateway.script(("a",), asyncio.Event())
    headers = [(b"x-api-key", b"sk-test")]
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    task = asyncio.ensure_future(gateway.app(scope, receive, send))
    await asyncio.wait_for(stuck.wait(), 5)
    left.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [g.cancel_count for g in gateway.admission.generations] == [1]
    unblock.set()
    await task
