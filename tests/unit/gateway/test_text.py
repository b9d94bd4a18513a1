"""Text on the wire: characters across tokens, stop strings, logprobs (cases, sections B and C)."""

import itertools
import json

import pytest
from gateway_client import chat_text, message_text
from gateway_fakes import Harness
from hypothesis import given
from hypothesis import strategies as st

from mantle.core.outcome import FinishReason
from mantle.core.tokens import TokenLogprob
from mantle.gateway.branch import Branch
from mantle.gateway.text_events import ChoiceEnded, TextDelta, collect
from mantle.scheduler.port import TokenChunk

TRICKY = "🌊🏖️🦀 é 漢"
BYTES = [(bytes([byte]),) for byte in TRICKY.encode()]


@pytest.mark.parametrize("tail", ["", "plain ascii tail that goes on for fifty tokens and more"])
async def test_split_characters_arrive_whole(gateway: Harness, tail: str) -> None:
    gateway.script(*BYTES, *[(char,) for char in tail])
    for stream in (True, False):
        assert chat_text(await gateway.chat(stream=stream)) == TRICKY + tail
        assert message_text(await gateway.messages(stream=stream)) == TRICKY + tail


async def test_empty_deltas_are_not_sent(gateway: Harness) -> None:
    gateway.script(*BYTES)
    reply = await gateway.chat(stream=True)
    deltas = [event["choices"][0]["delta"] for event in reply.events]
    assert all(delta["content"] for delta in deltas[1:] if "content" in delta)
    message = await gateway.messages(stream=True)
    texts = [e["delta"]["text"] for e in message.events if e["type"] == "content_block_delta"]
    assert all(texts)


async def test_logprob_bytes_join_to_the_content(gateway: Harness) -> None:
    gateway.script(*BYTES)
    reply = await gateway.chat(stream=True, logprobs=True, top_logprobs=2)
    entries = [
        entry
        for event in reply.events
        for choice in event["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert bytes(itertools.chain.from_iterable(e["bytes"] for e in entries)) == TRICKY.encode()
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    whole = await gateway.chat(logprobs=True, top_logprobs=2)
    assert whole.json()["choices"][0]["logprobs"]["content"] == entries


async def test_logprobs_of_an_empty_answer_are_an_empty_list(gateway: Harness) -> None:
    gateway.script()
    choice = (await gateway.chat(logprobs=True)).json()["choices"][0]
    assert choice["logprobs"] == {"content": [], "refusal": None}
    assert choice["message"]["content"] == ""


async def test_logprobs_are_finite_numbers(gateway: Harness) -> None:
    for value in (float("-inf"), float("nan"), -1e12):
        gateway.script(("a",), logprob=value)
        reply = await gateway.chat(logprobs=True, top_logprobs=20)
        entry = reply.json()["choices"][0]["logprobs"]["content"][0]
        assert entry["logprob"] == -9999.0
        echo = await gateway.completions(echo=True, logprobs=1, top_k=1)
        assert b"NaN" not in echo.body
        assert b"Infinity" not in echo.body
        json.loads(echo.body, parse_constant=pytest.fail)


async def test_top_logprobs_above_the_cap_are_refused(gateway: Harness) -> None:
    reply = await gateway.chat(logprobs=True, top_logprobs=21)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == "top_logprobs"


STOPS = [
    (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC", 5),
    (["DE"], ["ABC", "DEFG"], "ABC", 2),
    (["\nObservation:"], ["think", "\nObs", "ervation", ": no"], "think", 4),
    ("K", ["ABC", "K"], "ABC", 2),
]


@pytest.mark.parametrize(("stop", "pieces", "text", "used"), STOPS)
@pytest.mark.parametrize("in_one_chunk", [True, False])
async def test_stop_string_never_shows(
    gateway: Harness, stop: object, pieces: list[str], text: str, used: int, in_one_chunk: bool
) -> None:
    gateway.script(*([tuple(pieces)] if in_one_chunk else [(piece,) for piece in pieces]))
    streamed = await gateway.chat(stop=stop, stream=True, stream_options={"include_usage": True})
    whole = await gateway.chat(stop=stop)
    assert chat_text(streamed) == chat_text(whole) == text
    assert whole.json()["choices"][0]["finish_reason"] == "stop"
    assert streamed.events[-1]["usage"] == whole.json()["usage"]
    assert whole.json()["usage"]["completion_tokens"] == used
    assert [g.stopped_at for g in gateway.admission.generations] == [used, used]
    assert [g.cancel_count for g in gateway.admission.generations] == [0, 0]


@pytest.mark.parametrize("stream", [True, False])
async def test_stop_sequence_on_messages_is_named(gateway: Harness, stream: bool) -> None:
    gateway.script(("ok ",), ("HA",), ("LT",), (" more",))
    reply = await gateway.messages(stop_sequences=["HALT"], stream=stream)
    assert message_text(reply) == "ok "
    said = reply.events[-2]["delta"] if stream else reply.json()
    assert said["stop_reason"] == "stop_sequence"
    assert said["stop_sequence"] == "HALT"


async def test_text_held_for_a_stop_string_comes_out_at_the_end(gateway: Harness) -> None:
    gateway.script(("A",), ("DE",))
    for stream in (True, False):
        reply = await gateway.chat(stop=["DEF"], stream=stream, logprobs=True)
        assert chat_text(reply) == "ADE"


async def test_scores_of_a_stop_string_are_not_sent(gateway: Harness) -> None:
    gateway.script(("ABC",), ("DE",), ("F",))
    reply = await gateway.chat(stop=["DEF"], logprobs=True)
    entries = reply.json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["ABC"]


@given(
    text=st.text(max_size=30),
    cuts=st.lists(st.integers(1, 4), max_size=60),
    stops=st.lists(st.text(min_size=1, max_size=3), max_size=2),
)
def test_grouping_of_tokens_changes_nothing(text: str, cuts: list[int], stops: list[str]) -> None:
    harness = Harness()
    raw = text.encode()

    def play(groups: list[int]) -> tuple[object, ...]:
        branch = Branch(harness.text, choice_index=0, stop_strings=stops, scores=True)
        events, at = [], 0
        for size in [*groups, *[1] * len(raw)]:
            ids = tuple(raw[at : at + size])
            if not ids or branch.ended:
                break
            scores = tuple(TokenLogprob(token_id, -1.0) for token_id in ids)
            events += branch.feed(TokenChunk(at, ids, scores))
            at += size
        if not branch.ended:
            events += branch.finish(FinishReason.END)
        assert isinstance(events[-1], ChoiceEnded)
        assert all(event.text or event.scored for event in events if isinstance(event, TextDelta))
        choice = collect(events)[0]
        return choice.text, choice.scored, choice.ended

    assert play(cuts) == play([])
    if not any(stop in text for stop in stops):
        assert play(cuts)[0] == text
    harness.executor.shutdown()
