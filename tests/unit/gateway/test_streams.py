"""Coming back to a stream: positions, tenants, several readers."""

import asyncio

import pytest
from gateway_fakes import FakeGeneration, Harness, chat_body, message_body

from mantle.gateway.held import HeldAsk


def held(gateway: Harness) -> HeldAsk:
    (ask,) = gateway.asks._by_id.values()
    return ask


@pytest.fixture(autouse=True)
def replayable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake generation's script can be read any number of times."""
    monkeypatch.setattr(FakeGeneration, "replay", lambda self: _once_more(self), raising=False)


async def _once_more(generation: FakeGeneration):
    again = FakeGeneration.__new__(FakeGeneration)
    for name, value in vars(generation).items():
        setattr(again, name, value)
    again._output_tokens, again._reads = 0, asyncio.Semaphore(0)
    async for chunk in again:
        yield chunk
    generation.ended = again.ended


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body(stream=True)),
        ("/v1/completions", {"model": "m", "prompt": "x", "stream": True}),
        ("/v1/messages", message_body(stream=True)),
    ],
)
async def test_the_rest_after_any_position_completes_the_stream(
    gateway: Harness, path: str, body: dict
) -> None:
    gate = asyncio.Event()
    gateway.script(("a",), ("b", "c"), gate, ("d",))
    call = gateway.open(path, body)
    await asyncio.wait_for(gateway.admission.reads.acquire(), 5)
    gate.set()
    ask_id = held(gateway).asked.id
    whole = gateway.open(f"/v1/streams/{ask_id}", method="GET")
    everything = await whole.finished()
    first = await call.finished()
    assert everything.frames[-1] == first.frames[-1]
    assert set(first.ids) <= set(everything.ids)


async def test_only_later_frames_come(gateway: Harness) -> None:
    gate = asyncio.Event()
    gateway.script(("a", "b", "c"), gate, ("d",))
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await call.until(b"id: 3\n")
    path = f"/v1/streams/{held(gateway).asked.id}"
    by_query = gateway.open(f"{path}?starting_after=3", method="GET")
    by_header = gateway.open(path, method="GET", headers={"last-event-id": "3"})
    await asyncio.sleep(0)
    gate.set()
    replies = [await by_query.finished(), await by_header.finished()]
    first = await call.finished()
    for reply in replies:
        assert reply.ids == first.ids[first.ids.index("3") + 1 :]
        assert reply.frames == first.frames[first.ids.index("3") + 1 :]
    assert [g.cancel_count for g in gateway.admission.generations] == [0]


@pytest.mark.parametrize("position", ["x", "1.2", "-1", "1+1+1", ""])
async def test_a_wrong_position_is_told(gateway: Harness, position: str) -> None:
    gateway.script(asyncio.Event())
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await asyncio.wait_for(gateway.admission.reads.acquire(), 5)
    path = f"/v1/streams/{held(gateway).asked.id}"
    reply = await gateway.get(path, headers={"last-event-id": position})
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "last-event-id"
    call.disconnect()
    await call.finished()


async def test_fields_that_nobody_reads_are_no_failure_of_ours(gateway: Harness) -> None:
    gate = asyncio.Event()
    gateway.script(("a", "b"), gate, ("c",))
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await call.until(b"id: 2\n")
    query = "&".join([f"x{number}=1" for number in range(40)] + ["starting_after=2"])
    again = gateway.open(f"/v1/streams/{held(gateway).asked.id}?{query}", method="GET")
    await asyncio.sleep(0)
    gate.set()
    reply = await again.finished()
    assert (reply.status, reply.ids[0]) == (200, "3")
    await call.finished()


async def test_unknown_streams_are_not_found(gateway: Harness) -> None:
    reply = await gateway.get("/v1/streams/req_none")
    assert reply.status == 404


async def test_a_followed_request_outlives_its_client(gateway: Harness) -> None:
    gate = asyncio.Event()
    gateway.script(("a",), gate, ("b",))
    call = gateway.open("/v1/chat/completions", chat_body(stream=True))
    await call.until(b"id: 1\n")
    follower = gateway.open(f"/v1/streams/{held(gateway).asked.id}", method="GET")
    await follower.until(b"id: 1\n")
    call.disconnect()
    await call.finished()
    assert [g.cancel_count for g in gateway.admission.generations] == [0]
    gate.set()
    assert (await follower.finished()).frames[-1] == "data: [DONE]"
    assert [g.cancel_count for g in gateway.admission.generations] == [0]


async def test_a_keyed_request_is_joined_and_refused_to_another_body(gateway: Harness) -> None:
    gate = asyncio.Event()
    gateway.script(("a",), gate, ("b",))
    keyed = {"idempotency-key": "k"}
    path = "/v1/chat/completions"
    calls = [gateway.open(path, chat_body(stream=True), headers=keyed) for _ in range(3)]
    for call in calls:
        await call.until(b"id: 1\n")
    assert len(gateway.admission.generations) == 1
    other = await gateway.call(path, chat_body(stream=True, n=2), headers=keyed)
    assert other.status == 409
    gate.set()
    bodies = [(await call.finished()).body for call in calls]
    assert bodies[0] == bodies[1] == bodies[2]
    assert len(gateway.metrics.of("tokens_used")) == 1, "charged once"


async def test_a_keyed_request_of_a_client_that_left_runs_on_for_the_grace(
    gateway: Harness,
) -> None:
    gate = asyncio.Event()
    gateway.script(("a",), gate, ("b",))
    keyed = {"idempotency-key": "k"}
    call = gateway.open("/v1/chat/completions", chat_body(stream=True), headers=keyed)
    await call.until(b"id: 1\n")
    call.disconnect()
    await call.finished()
    assert [g.cancel_count for g in gateway.admission.generations] == [0]
    again = gateway.open("/v1/chat/completions", chat_body(stream=True), headers=keyed)
    await again.until(b"id: 1\n")
    gate.set()
    assert (await again.finished()).frames[-1] == "data: [DONE]"
    assert len(gateway.admission.generations) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "\x07"])
async def test_a_wrong_key_is_told(gateway: Harness, key: str) -> None:
    reply = await gateway.call(
        "/v1/chat/completions", chat_body(), headers={"idempotency-key": key}
    )
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "idempotency-key"
