"""Does a client see that it waits, as often as set, and may it leave? On simulated time."""

import asyncio
from contextlib import contextmanager

import anthropic
import httpx2
import openai
import pytest
from gateway_fakes import Harness, chat_body, message_body

from mantle.core.outcome import Outcome
from mantle.gateway.parts import GatewaySettings
from mantle.scheduler.port import QueueView
from mantle.testing.sim_clock import SimClock
from mantle.testing.sim_loop import run_on_sim_time

CHAT = ("/v1/chat/completions", chat_body(stream=True))
COMPLETION = ("/v1/completions", {"model": "m", "prompt": "go", "stream": True})
MESSAGE = ("/v1/messages", message_body(stream=True))


class Line:
    """A stream whose request waits from the start until `starts_s`; text comes `silent_s` later."""

    def __init__(self, *, starts_s, silent_s=0.0, estimates=True, **settings):
        self.clock = SimClock()
        self.harness = Harness(GatewaySettings(**settings), clock=self.clock)
        self.starts_s, self.silent_s, self.estimates = starts_s, silent_s, estimates
        self._text_comes = asyncio.Event()
        self.harness.script(self._text_comes, ("late",), view_at=self._view)

    def _view(self):
        left_s = self.starts_s - self.clock.now_ms() / 1e3
        if left_s <= 0:
            return None
        estimated_ms = left_s * 1e3 if self.estimates else None
        return QueueView(int(left_s), self.clock.now_ms(), estimated_ms)

    async def call(self, path, body, *, leaves_s=None):
        """The reply's parts, each with the second at which it was sent."""
        loop = asyncio.get_running_loop()
        loop.call_later(self.starts_s + self.silent_s, self._text_comes.set)
        call = self.harness.open(path, body)
        if leaves_s is not None:
            loop.call_later(leaves_s, call.disconnect)
        sent, sizes = [], 0
        while not call.task.done():
            call._changed.clear()
            waits = [call.task, asyncio.ensure_future(call._changed.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            waits[1].cancel()
            at_s = round(self.clock.now_ms() / 1e3, 1)
            sent += [(at_s, part.decode()) for part in call.reply.sends[sizes:]]
            sizes = len(call.reply.sends)
        return call.reply, sent


@contextmanager
def line(**parts):
    made = Line(**parts)
    try:
        yield made
    finally:
        made.harness.executor.shutdown()


def comments(sent):
    found = []
    for at_s, part in sent:
        found += [(at_s, text[2:]) for text in part.split("\n") if text.startswith(": ")]
    return found


@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION])
def test_waiting_stream_says_every_two_seconds_where_it_stands(path, body):
    with line(starts_s=7.0) as waiting:
        reply, sent = run_on_sim_time(waiting.call(path, body), waiting.clock)
    assert comments(sent) == [
        (2.0, "queued position=5 waited_s=2.0 estimated_wait_s=5.0"),
        (4.0, "queued position=3 waited_s=4.0 estimated_wait_s=3.0"),
        (6.0, "queued position=1 waited_s=6.0 estimated_wait_s=1.0"),
    ]
    assert reply.headers["x-mantle-queue-position"] == "5"
    assert reply.headers["x-mantle-estimated-wait-ms"] == "5000"
    assert reply.frames[-1] == "data: [DONE]"


def test_message_stream_gets_pings_that_say_it_too():
    with line(starts_s=4.5, queue_ping_s=1.0) as waiting:
        reply, sent = run_on_sim_time(waiting.call(*MESSAGE), waiting.clock)
    pings = [(at_s, part.count("event: ping\n")) for at_s, part in sent]
    assert pings == [(2.0, 1), (3.0, 1), (4.0, 1), (4.5, 0)]
    assert comments(sent)[1] == (3.0, "queued position=1 waited_s=3.0 estimated_wait_s=1.5")
    ping = next(frame for frame in reply.frames if "event: ping" in frame)
    assert ping.split("\n")[0].startswith(": queued position=")
    assert ping.endswith('event: ping\ndata: {"type":"ping"}')


def test_interval_is_the_configs_and_no_estimate_is_made_up():
    with line(starts_s=2.6, estimates=False, queue_ping_s=0.5, stream_hold_s=1.0) as waiting:
        _, sent = run_on_sim_time(waiting.call(*CHAT), waiting.clock)
    assert comments(sent) == [
        (1.0, "queued position=1 waited_s=1.0"),
        (1.5, "queued position=1 waited_s=1.5"),
        (2.0, "queued position=0 waited_s=2.0"),
        (2.5, "queued position=0 waited_s=2.5"),
    ]


def test_once_it_runs_it_is_silent_for_longer():
    with line(starts_s=3.0, silent_s=20.0) as waiting:
        _, sent = run_on_sim_time(waiting.call(*CHAT), waiting.clock)
    assert comments(sent) == [
        (2.0, "queued position=1 waited_s=2.0 estimated_wait_s=1.0"),
        (4.0, "working"),
        (14.0, "working"),
    ]


@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION, MESSAGE])
def test_client_may_leave_while_it_waits(path, body):
    with line(starts_s=60.0) as waiting:
        reply, sent = run_on_sim_time(waiting.call(path, body, leaves_s=5.0), waiting.clock)
        assert waiting.clock.now_ms() < 6_000.0  # at once, not when the next comment is due
    assert len(comments(sent)) == 2
    assert not reply.is_complete
    (generation,) = waiting.harness.admission.generations
    assert generation.cancel_count == 1
    (finished,) = waiting.harness.metrics.of("request_finished")
    assert (finished["outcome"], finished["status"]) == (Outcome.CANCELLED, 499)


def _replaying(body):
    """An HTTP client to which every server says this."""
    headers = {"content-type": "text/event-stream"}
    answer = httpx2.Response(200, headers=headers, content=body)
    return httpx2.Client(transport=httpx2.MockTransport(lambda _request: answer))


def test_official_clients_skip_what_is_said_while_waiting():
    ask = {"model": "m", "messages": CHAT[1]["messages"]}
    with line(starts_s=5.0) as waiting:
        reply, sent = run_on_sim_time(waiting.call(*CHAT), waiting.clock)
    assert comments(sent)
    client = openai.OpenAI(api_key="k", http_client=_replaying(reply.body))
    chunks = client.chat.completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "late"
    with line(starts_s=5.0) as waiting:
        reply, sent = run_on_sim_time(waiting.call(*MESSAGE), waiting.clock)
    assert comments(sent)
    client = anthropic.Anthropic(api_key="k", http_client=_replaying(reply.body))
    with client.messages.stream(**ask, max_tokens=9) as stream:
        assert "".join(stream.text_stream) == "late"
