"""The real model, killed anywhere: is every reply what an undisturbed run says, to the last bit?

Six sequences of every kind run at once and are cut together; the undisturbed run asks one by one,
so it also shows that the batch does not matter (`numerics: exact`).
"""

import os
import signal
import threading
import time

import pytest

from mantle.core.crash_point import CRASH_POINTS
from tests.crash.processes import worker_pids
from tests.crash.site import DEADLINE_S, Seen, Site, journal_place
from tests.running_server import MODEL

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKENS = 36
ASKS = {
    "greedy, scored": {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    "sampled, penalties": {
        "temperature": 1.1,
        "top_p": 0.95,
        "seed": 11,
        "frequency_penalty": 0.9,
        "presence_penalty": 0.4,
    },
    "two choices": {"n": 2, "temperature": 0.9, "seed": 5},
    "schema": {
        "temperature": 0.9,
        "seed": 3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "ship",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "maxLength": 40},
                        "story": {"type": "string"},
                    },
                    "required": ["name", "story"],
                    "additionalProperties": False,
                },
            },
        },
    },
    "stop string": {"temperature": 0, "stop": ["a beacon of hope"]},
}


def body(fields):
    messages = [{"role": "user", "content": "Tell me a story about a lighthouse."}]
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def exact_site(folder, journal):
    return Site(
        folder, journal, model=MODEL, engine={"numerics": "exact", "slots": 8, "window_tokens": 256}
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Each ask alone on a server that lives."""
    site = exact_site(tmp_path_factory.mktemp("undisturbed"), {"store": "sqlite"})
    _, client = site.start()
    seen = {name: Seen() for name in ASKS}
    with client:
        for name, fields in ASKS.items():
            seen[name].read(client, "POST", "/v1/chat/completions", json=body(fields))
    site.stop()
    assert all(one.is_done for one in seen.values())
    assert seen["stop string"].choices[0].finish == "stop", "the control: it is found"
    return seen


@pytest.fixture(params=["sqlite", "postgres"])
def site(request, tmp_path):
    made = exact_site(tmp_path, journal_place(request, request.param))
    yield made
    made.stop()


def at_once(client, seen, read):
    """Read all streams at the same time, to their ends or to the server's."""
    threads = [threading.Thread(target=read, args=(client, name)) for name in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
        assert not thread.is_alive()


def check(seen, undisturbed):
    for name, one in seen.items():
        assert one.is_done, name
        assert one.choices == undisturbed[name].choices, name
        assert one.usage["completion_tokens"] == undisturbed[name].usage["completion_tokens"], name


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_every_reply_is_as_if_nothing_had_happened(site, undisturbed, point):
    seen = {name: Seen() for name in ASKS}

    def ask(client, name):
        seen[name].read(client, "POST", "/v1/chat/completions", json=body(ASKS[name]))

    def go_on(client, name):
        if seen[name].is_done:
            return
        if seen[name].request_id is None:
            ask(client, name)  # the server died before it had answered anything
        else:
            seen[name].go_on(client)

    server, client = site.start(f"{point}:18")
    with client:
        at_once(client, seen, ask)
    assert server.process.wait(DEADLINE_S) == -signal.SIGKILL
    cut = [name for name in ASKS if not seen[name].is_done]
    assert sum(bool(seen[name].positions) for name in cut) >= 3, "the death came in the middle"
    if site.journal["store"] == "sqlite" and point == "after_commit":
        server, client = site.start(f"{point}:9")  # it dies again, in the middle of the rest
        with client:
            at_once(client, cut, go_on)
        assert server.process.wait(DEADLINE_S) == -signal.SIGKILL
    _, client = site.start()
    with client:
        at_once(client, cut, go_on)
    check(seen, undisturbed)


def test_another_worker_in_another_batch_goes_on_alike(site, undisturbed):
    """The worker dies twice; new requests have joined the batch by then."""
    seen = {name: Seen() for name in ASKS}

    def ask(client, name):
        seen[name].read(client, "POST", "/v1/chat/completions", json=body(ASKS[name]))

    server, client = site.start()

    def kill_worker_twice():
        for _ in range(2):
            enough = len(seen["greedy, scored"].positions) + 10
            ends = time.monotonic() + DEADLINE_S
            while len(seen["greedy, scored"].positions) < enough and time.monotonic() < ends:
                time.sleep(0.01)
            for pid in worker_pids(server):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_worker_twice)
    with client:
        killer.start()
        at_once(client, seen, ask)
        killer.join()
        metrics = client.get("/metrics").text
    assert "mantle_worker_restarts 2.0" in metrics, "the control: it died"
    check(seen, undisturbed)
