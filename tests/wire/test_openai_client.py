"""Does the official OpenAI client work by changing only the base URL? Strict validation is on."""

import json

import openai
import pydantic
import pytest

MODEL = "smollm2-135m-instruct"

pytestmark = [pytest.mark.model, pytest.mark.process]

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def lenient_client(server):
    """For what the SDK's own types do not allow though OpenAI sends it: a null `finish_reason` in
    streamed completions, and a null first `token_logprobs`.
    """
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=server.api_key, max_retries=0)


def test_lists_models(openai_client):
    models = openai_client.models.list().data
    assert [m.id for m in models] == [MODEL]
    assert openai_client.models.retrieve(MODEL).id == MODEL


def test_chat(openai_client):
    reply = openai_client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.service_tier == "default"


def test_chat_stream_equals_the_whole(openai_client):
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 0}
    whole = openai_client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(
        openai_client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole
    assert chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])


def test_chat_stream_helper(openai_client):
    with openai_client.chat.completions.stream(
        model=MODEL, messages=HELLO, temperature=0
    ) as stream:
        final = list(stream)[-1]
    assert final is not None
    assert stream.get_final_completion().choices[0].message.content


def test_chat_lanes_are_reported(openai_client):
    for tier in ("priority", "flex", "default"):
        reply = openai_client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=2, service_tier=tier
        )
        assert reply.service_tier == tier


def test_chat_choices_logprobs_and_seed(openai_client):
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "n": 3, "seed": 7}
    first = openai_client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    assert [c.index for c in first.choices] == [0, 1, 2]
    for choice in first.choices:
        raw = b"".join(bytes(t.bytes) for t in choice.logprobs.content)
        assert raw.decode("utf-8", "replace").startswith(choice.message.content.rstrip("\ufffd"))
        assert all(len(t.top_logprobs) == 3 for t in choice.logprobs.content)


def test_completions(openai_client):
    reply = openai_client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=5)
    assert reply.choices[0].text
    assert reply.usage.completion_tokens == 5


def test_completions_stream(lenient_client):
    chunks = list(
        lenient_client.completions.create(
            model=MODEL, prompt="One, two, three,", max_tokens=5, stream=True
        )
    )
    assert "".join(c.choices[0].text for c in chunks)


def test_completions_echo_and_logprobs_for_evaluations(lenient_client):
    reply = lenient_client.completions.create(
        model=MODEL, prompt=[[504, 1212, 2644]], max_tokens=1, logprobs=1, echo=True,
        temperature=0, seed=1234,
    )  # fmt: skip
    logprobs = reply.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.token_logprobs) == 4
    assert all(p < 0 for p in logprobs.token_logprobs[1:])
    assert len(logprobs.top_logprobs) == 4


def test_same_routes_under_their_own_prefix(server):
    client = openai.OpenAI(base_url=f"{server.base_url}/openai/v1", api_key=server.api_key)
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2).choices


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "nobody"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
        ({"messages": "hello"}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 9_000}]}, openai.BadRequestError),
    ],
)
def test_mistakes_raise_the_clients_own_errors(openai_client, change, error):
    with pytest.raises(error) as raised:
        openai_client.chat.completions.create(
            **{"model": MODEL, "messages": HELLO, "max_tokens": 2, **change}
        )
    body = json.loads(raised.value.response.text)["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert raised.value.request_id


def test_wrong_key_is_refused(server):
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()


async def test_many_at_once_get_each_their_own(server):
    client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=server.api_key)
    import asyncio

    async def one(number):
        reply = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Number {number}?"}],
            max_tokens=4 + number % 5, extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert reply.usage.completion_tokens == 4 + number % 5
        return reply.id

    ids = await asyncio.gather(*(one(n) for n in range(32)))
    assert len(set(ids)) == 32


def test_structured_output_is_parsed_by_the_client(openai_client):
    class Ship(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        masts: int = pydantic.Field(ge=1, le=5)

    reply = openai_client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a ship with 9 masts."}],
        response_format=Ship,
        max_tokens=100,
    )
    assert reply.choices[0].finish_reason == "stop"
    assert 1 <= reply.choices[0].message.parsed.masts <= 5


def test_bad_schemas_harm_no_other_stream(openai_client):
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "stream": True}
    streams = [openai_client.chat.completions.create(**ask) for _ in range(4)]
    for schema in ({"type": 123}, {"$ref": "#/nope"}, {"type": "hiccup"}, {"pattern": "(?=x)y"}):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as refused:
            openai_client.chat.completions.create(
                model=MODEL, messages=HELLO, response_format=wanted
            )
        assert refused.value.param == "response_format.json_schema.schema"
    for stream in streams:
        assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")
