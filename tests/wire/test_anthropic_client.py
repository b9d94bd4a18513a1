"""Does the official Anthropic client work by changing only the base URL? Strictly validated."""

import json

import anthropic
import pytest

MODEL = "smollm2-135m-instruct"
HELLO = [{"role": "user", "content": "Say hello."}]

pytestmark = [pytest.mark.model, pytest.mark.process]


def test_message(anthropic_client):
    reply = anthropic_client.messages.create(model=MODEL, max_tokens=12, messages=HELLO)
    assert reply.content[0].text
    assert reply.stop_reason in ("end_turn", "max_tokens")
    assert reply.usage.input_tokens > 0


def test_stream_equals_the_whole(anthropic_client):
    ask = {"model": MODEL, "max_tokens": 16, "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = anthropic_client.messages.create(**ask)
    with anthropic_client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


def test_raw_events_come_in_order(anthropic_client):
    events = list(
        anthropic_client.messages.create(model=MODEL, max_tokens=4, messages=HELLO, stream=True)
    )
    kinds = [e.type for e in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0].message.usage.input_tokens > 0


def test_count_tokens_equals_usage(anthropic_client):
    ask = {
        "model": MODEL,
        "system": [{"type": "text", "text": "You are brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Why is it so? 🌊"}]}],
    }
    counted = anthropic_client.messages.count_tokens(**ask).input_tokens
    used = anthropic_client.messages.create(**ask, max_tokens=1).usage
    cached = used.cache_read_input_tokens or 0
    written = used.cache_creation_input_tokens or 0
    assert counted == used.input_tokens + cached + written


def test_stop_sequence(anthropic_client):
    ask = {"model": MODEL, "messages": HELLO, "extra_body": {"temperature": 0}}
    whole = anthropic_client.messages.create(**ask, max_tokens=16).content[0].text
    word = whole.split()[1]
    cut = anthropic_client.messages.create(**ask, max_tokens=16, stop_sequences=[word])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == word
    assert cut.content[0].text == whole[: whole.index(word)]


def test_models(anthropic_client):
    assert [m.id for m in anthropic_client.models.list().data] == [MODEL]
    assert anthropic_client.models.retrieve(MODEL).id == MODEL


def test_same_routes_under_their_own_prefix(server):
    client = anthropic.Anthropic(
        base_url=f"{server.base_url}/anthropic", api_key=server.api_key, max_retries=0
    )
    assert client.messages.create(model=MODEL, max_tokens=2, messages=HELLO).content


def test_bearer_token_works_too(server):
    client = anthropic.Anthropic(
        base_url=server.base_url, auth_token=server.api_key, api_key=None, max_retries=0
    )
    assert client.messages.create(model=MODEL, max_tokens=2, messages=HELLO).content


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "nobody"}, anthropic.NotFoundError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 9_000}]}, anthropic.BadRequestError),
    ],
)
def test_mistakes_raise_the_clients_own_errors(anthropic_client, change, error):
    with pytest.raises(error) as raised:
        anthropic_client.messages.create(
            **{"model": MODEL, "max_tokens": 2, "messages": HELLO, **change}
        )
    body = json.loads(raised.value.response.text)
    assert body["type"] == "error"
    assert body["request_id"]


def test_wrong_key_is_refused(server):
    client = anthropic.Anthropic(base_url=server.base_url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model=MODEL, max_tokens=2, messages=HELLO)
