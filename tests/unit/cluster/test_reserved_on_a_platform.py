"""Does a reply say, on both APIs, whether bought capacity served it? Through the whole road."""

import dataclasses
import json

import httpx
import pytest

from mantle.admission.directory import Directory, TenantKeys, hash_api_key
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Reservation, Tenant
from mantle.testing.platform import TEST_KEY, scripted_platform
from mantle.testing.scripts import script_of

FAKE = ModelId("fake")
BUYER = Tenant(TenantId("buyer"), reservations=(Reservation(FAKE, 10_000, 30),))
CHAT = {"model": "fake", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}


def keys(tenant):
    return [TenantKeys(tenant, (hash_api_key(TEST_KEY),))]


@pytest.fixture
async def scripted(tmp_path):
    script = script_of(*["word "] * 20)
    async with scripted_platform(tmp_path, {"fake": script}, tenants=keys(BUYER)) as scripted:
        yield scripted


@pytest.fixture
async def client(scripted):
    transport = httpx.ASGITransport(scripted.platform.app)
    headers = {"authorization": f"Bearer {TEST_KEY}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://mantle", headers=headers
    ) as client:
        yield client


async def openai_tier(client, **fields):
    reply = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        (tier,) = {json.loads(line)["service_tier"] for line in lines}
        return tier
    return reply.json()["service_tier"]


async def anthropic_tier(client, **fields):
    reply = await client.post("/v1/messages", json={**CHAT, **fields})
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        data = next(line for line in reply.text.splitlines() if line.startswith("data: "))
        return json.loads(data[6:])["message"]["usage"]["service_tier"]
    return reply.json()["usage"]["service_tier"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tier", ["auto", "reserved"])
async def test_openai_says_scale_and_then_default(client, tier, stream):
    assert await openai_tier(client, service_tier=tier, stream=stream) == "scale"
    assert await openai_tier(client, service_tier=tier, stream=stream) == "default"


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_says_priority_and_then_standard(client, stream):
    assert await anthropic_tier(client, stream=stream) == "priority"
    assert await anthropic_tier(client, stream=stream) == "standard"


async def test_default_never_uses_what_was_bought(client):
    assert await openai_tier(client, service_tier="default") == "default"
    assert await anthropic_tier(client, service_tier="standard_only") == "standard"
    assert await openai_tier(client) == "scale"


async def test_metrics_name_the_lane_that_served(client):
    await openai_tier(client)
    await openai_tier(client)
    text = (await client.get("/metrics")).text
    finished = [line for line in text.splitlines() if line.startswith("mantle_requests_total{")]
    for lane in ("reserved", "standard"):
        assert any(f'lane="{lane}"' in line and line.endswith(" 1.0") for line in finished), lane


async def test_own_queue_bound_changes_without_a_restart(scripted, client):
    bound = QueueBound(Lane.STANDARD, requests_max=1)
    tight = dataclasses.replace(BUYER, reservations=(), queues=(bound,))
    scripted.platform.admission.directory = Directory(keys(tight))
    reply = await client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    assert reply.status_code == 429
    assert "your queue in the standard lane is full" in reply.text
    scripted.platform.admission.directory = Directory(keys(BUYER))
    assert await openai_tier(client, n=2, service_tier="default") == "default"
