"""`/v1/completions`: kinds of prompts, echo, scores (cases 102, 103, 119, 121)."""

from typing import Any

import pytest
from gateway_fakes import Harness
from piece_text import BOS_ID

from mantle.core.errors import QueueFull


def choices_of(reply: Any) -> dict[int, dict[str, Any]]:
    """Text and scores of each choice, joined over a stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return {choice["index"]: choice for choice in reply.json()["choices"]}
    joined: dict[int, dict[str, Any]] = {}
    for event in reply.events:
        for choice in event["choices"]:
            into = joined.setdefault(
                choice["index"], {"index": choice["index"], "text": "", "logprobs": None}
            )
            into["text"] += choice["text"]
            into["finish_reason"] = choice["finish_reason"]
            for key, values in (choice["logprobs"] or {}).items():
                into["logprobs"] = into["logprobs"] or {}
                into["logprobs"].setdefault(key, []).extend(values)
    return joined


@pytest.mark.parametrize(
    ("prompt", "asks"),
    [
        ("ab", [(BOS_ID, 97, 98)]),
        (["ab", "c"], [(BOS_ID, 97, 98), (BOS_ID, 99)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [99]], [(97, 98), (99,)]),
        (None, [(BOS_ID,)]),
    ],
)
async def test_each_prompt_is_an_ask(gateway: Harness, prompt: Any, asks: list) -> None:
    reply = await gateway.completions(prompt=prompt, n=2)
    assert [ask.prompt_tokens for ask in gateway.admission.asks] == asks
    assert [choice["index"] for choice in reply.json()["choices"]] == list(range(2 * len(asks)))
    usage = reply.json()["usage"]
    assert usage["prompt_tokens"] == sum(map(len, asks))
    assert usage["completion_tokens"] == 4 * len(asks)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", 5], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([1, "a"], "prompt[0]"),
        ([True], "prompt[0]"),
        ([[1, "a"]], "prompt[0]"),
        ([100_000], "prompt"),
        ([[1], [-1]], "prompt[1]"),
        ({"a": 1}, "prompt"),
        (["a"] * 129, "prompt"),
    ],
)
async def test_bad_prompt_is_named(gateway: Harness, prompt: Any, param: str) -> None:
    reply = await gateway.completions(prompt=prompt)
    assert reply.status == 400
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -5, "echo": True}, "max_tokens", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"min_tokens": 2}, "min_tokens", "unsupported_parameter"),
    ],
)
async def test_refusals(gateway: Harness, fields: dict, param: str, code: str) -> None:
    error = (await gateway.completions(**fields)).json()["error"]
    assert (error["param"], error["code"]) == (param, code)


async def test_default_is_16_tokens(gateway: Harness) -> None:
    await gateway.completions()
    await gateway.completions(max_tokens=None, suffix=None, best_of=1)
    assert [ask.max_output_tokens for ask in gateway.admission.asks] == [16, 16]


@pytest.mark.parametrize("prompt", ["go", [103, 111]])
@pytest.mark.parametrize("stream", [True, False])
async def test_echo_puts_the_prompt_first(gateway: Harness, prompt: Any, stream: bool) -> None:
    reply = await gateway.completions(prompt=prompt, echo=True, n=2, stream=stream)
    assert [choice["text"] for choice in choices_of(reply).values()] == ["gohello world"] * 2


@pytest.mark.parametrize("stream", [True, False])
async def test_echo_with_scores_covers_prompt_and_output(gateway: Harness, stream: bool) -> None:
    reply = await gateway.completions(
        prompt=[[103, 111], [97]], echo=True, logprobs=1, max_tokens=1, seed=1234, stream=stream
    )
    first, second = choices_of(reply).values()
    assert first["logprobs"] == {
        "tokens": ["g", "o", "hello"],
        "token_logprobs": [None, -1.5, -0.5],
        "top_logprobs": [None, {"o": -1.5}, {"hello": -0.5}],
        "text_offset": [0, 1, 2],
    }
    assert first["text"] == "gohello"
    assert second["logprobs"]["tokens"] == ["a", "hello"]
    assert second["logprobs"]["text_offset"] == [0, 1]
    assert gateway.admission.asks[0].ignore_eos


@pytest.mark.parametrize("stream", [True, False])
async def test_max_tokens_0_with_echo_scores_the_prompt_only(
    gateway: Harness, stream: bool
) -> None:
    reply = await gateway.completions(echo=True, max_tokens=0, logprobs=1, stream=stream,
                                      stream_options={"include_usage": True})  # fmt: skip
    (choice,) = choices_of(reply).values()
    assert choice["text"] == "go"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -1.5]
    assert choice["finish_reason"] == "length"
    usage = reply.events[-1]["usage"] if stream else reply.json()["usage"]
    assert usage["completion_tokens"] == 0


async def test_scores_without_echo_start_at_the_output(gateway: Harness) -> None:
    choice = (await gateway.completions(logprobs=2)).json()["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 5]
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.5]


async def test_parts_of_characters_have_keys_of_their_own(gateway: Harness) -> None:
    gateway.script(*[(bytes([byte]),) for byte in "é".encode()])
    logprobs = (await gateway.completions(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert list(logprobs["top_logprobs"][0]) == ["bytes:\\xc3"]


async def test_long_echo_keeps_the_line_limit(gateway: Harness) -> None:
    prompt = "漢" * 1300
    reply = await gateway.completions(prompt=prompt, echo=True, logprobs=20, stream=True)
    assert max(map(len, reply.body.split(b"\n"))) <= 32 * 1024
    assert choices_of(reply)[0]["text"] == prompt + "hello world"


async def test_refused_prompt_cancels_those_that_had_entered(gateway: Harness) -> None:
    gateway.admission.refusal = QueueFull("full", retry_after_ms=1000)
    gateway.admission.refuse_from_ask = 2
    reply = await gateway.completions(prompt=["a", "b", "c"])
    assert reply.status == 429
    assert [g.cancel_count for g in gateway.admission.generations] == [1, 1]
