"""A server that is killed anywhere, and started again: what a client was shown goes on, exactly."""

import json

import httpx
import pytest

from mantle.core.crash_point import CRASH_POINTS
from mantle.testing.scripts import byte_script, script_of, write_script
from tests.crash.site import DEADLINE_S, Seen, Site, journal_place

pytestmark = pytest.mark.process

LETTERS = [chr(code) for code in range(ord("a"), ord("a") + 26)]
SCRIPT = script_of(*LETTERS, step_ms=15.0)
TEXT = "".join(LETTERS)


@pytest.fixture(params=["sqlite", "postgres"])
def site(request, tmp_path):
    made = Site(tmp_path, journal_place(request, request.param), model="fake")
    made.mantle("models", "add", str(write_script(tmp_path, SCRIPT)), "--name", "fake")
    yield made
    made.stop()


def body(**fields):
    messages = [{"role": "user", "content": "go"}]
    return {"model": "fake", "messages": messages, "stream": True, **fields}


def go_on(site, seen):
    """Start the server again and read the rest."""
    _, client = site.start()
    with client:
        seen.go_on(client)


@pytest.mark.parametrize(
    ("site", "passes"),
    [("sqlite", 1), ("sqlite", 2), ("sqlite", 9), ("postgres", 9)],
    indirect=["site"],
)
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_what_was_shown_goes_on_at_the_exact_token(site, point, passes) -> None:
    server, client = site.start(f"{point}:{passes}")
    seen = Seen()
    with client:
        seen.read(client, "POST", "/v1/chat/completions", json=body(n=2))
    assert server.process.wait(DEADLINE_S) == -9
    assert not seen.is_done
    if passes == 9:
        assert seen.request_id is not None, "by then the client was told of its request"
    if seen.request_id is None:
        _, client = site.start()
        with client:
            seen.read(client, "POST", "/v1/chat/completions", json=body(n=2))
    else:
        go_on(site, seen)
    assert seen.is_done
    assert seen.texts == {0: TEXT, 1: TEXT}


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize("passes", [6, 7, 8])
def test_a_character_that_was_cut_in_two_comes_whole(site, passes) -> None:
    """A token is one byte; a character of four bytes is held back until its last one is there."""
    text = "ab🗼ŏ🌊"
    script = byte_script(text.encode(), step_ms=15.0)
    site.mantle("models", "add", str(write_script(site.folder, script, name="b")), "--name", "b")
    seen = Seen()
    server, client = site.start(f"after_acknowledge:{passes}")
    with client:
        seen.read(client, "POST", "/v1/chat/completions", json=body(model="b"))
    assert server.process.wait(DEADLINE_S) == -9
    assert not seen.is_done
    go_on(site, seen)
    assert seen.texts == {0: text}


def test_an_anthropic_stream_goes_on_with_its_events_in_order(site) -> None:
    fields = {"model": "fake", "max_tokens": 100, "stream": True}
    messages = [{"role": "user", "content": "go"}]
    server, client = site.start("after_commit:9")
    events, request_id, position = [], "", ""

    def read(client, method, path, **kwargs):
        nonlocal request_id, position
        try:
            with client.stream(method, path, **kwargs) as response:
                request_id = request_id or response.headers["request-id"]
                for line in response.iter_lines():
                    if line.startswith("id: "):
                        position = line[4:]
                    elif line.startswith("data: "):
                        events.append(json.loads(line[6:]))
        except httpx.TransportError:
            return

    with client:
        read(client, "POST", "/v1/messages", json={**fields, "messages": messages})
    assert server.process.wait(DEADLINE_S) == -9
    _, client = site.start()
    with client:
        read(client, "GET", f"/v1/streams/{request_id}", headers={"last-event-id": position})
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    deltas = [one for one in kinds if one == "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        *deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    said = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert said == TEXT


def test_several_deaths_of_one_request(site) -> None:
    seen = Seen()
    _, client = site.start("after_commit:6")
    with client:
        seen.read(client, "POST", "/v1/chat/completions", json=body())
    for _ in range(2):
        server, client = site.start("after_acknowledge:5")
        with client:
            seen.go_on(client)
        assert server.process.wait(DEADLINE_S) == -9
    go_on(site, seen)
    assert seen.is_done
    assert seen.texts == {0: TEXT}


def test_a_repeated_key_gets_the_reply_of_the_first_try(site) -> None:
    keyed = {"idempotency-key": "order-17"}
    server, client = site.start("after_commit:9")
    with client, pytest.raises(httpx.TransportError):
        client.post("/v1/chat/completions", json=body(stream=False), headers=keyed)
    assert server.process.wait(DEADLINE_S) == -9
    _, client = site.start()
    with client:
        replies = [
            client.post("/v1/chat/completions", json=body(stream=False), headers=keyed)
            for _ in range(2)
        ]
        first, second = (reply.json() for reply in replies)
        assert first == second
        assert first["choices"][0]["message"]["content"] == TEXT
        other = client.post("/v1/chat/completions", json=body(n=2), headers=keyed)
        assert other.status_code == 409


def test_a_second_server_takes_the_journal_over_and_the_first_one_stops(site) -> None:
    old, old_client = site.start()
    _, new_client = site.start()
    with old_client, new_client:
        refused = old_client.post("/v1/chat/completions", json=body(stream=False))
        assert refused.status_code == 503, "nothing is acknowledged that is not durable"
        assert old.process.wait(DEADLINE_S) == 2, "a clear failure, no trace"
        reply = new_client.post("/v1/chat/completions", json=body(stream=False))
        assert reply.json()["choices"][0]["message"]["content"] == TEXT
    log = (site.folder / "server.log").read_text()
    assert "another server has opened this journal" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_retention_none_leaves_nothing_readable(site) -> None:
    site.journal["retention"] = "none"
    secret = "a secret nobody may find"
    server, client = site.start()
    with client:
        messages = [{"role": "user", "content": secret}]
        reply = client.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
        assert reply.json()["choices"][0]["message"]["content"] == TEXT
        gone = client.get(f"/v1/streams/{reply.headers['x-request-id']}")
        assert gone.status_code == 404
    server.stop()
    written = b"".join(path.read_bytes() for path in site.folder.glob("journal.db*"))
    assert reply.headers["x-request-id"].encode() in written, "the control: it was written down"
    assert secret.encode() not in written
    assert TEXT.encode() not in written
