"""Does a quota hold through the whole road: admission, queues, engine, ends of every kind?"""

import asyncio

import pytest

from mantle.admission.directory import TenantKeys, hash_api_key
from mantle.admission.port import Ask
from mantle.core.errors import QuotaExceeded, Unavailable
from mantle.core.ids import ModelId, TenantId
from mantle.core.sampling import SamplingParams
from mantle.core.tenant import Quota, Tenant
from mantle.testing.platform import TEST_KEY, scripted_platform
from mantle.testing.scripts import script_of

FAKE = ModelId("fake")
INPUT_PER_MIN, OUTPUT_PER_MIN, CONCURRENT_MAX = 2_000, 1_000, 40
REPLY_TOKENS = 5


@pytest.fixture
async def scripted(tmp_path):
    quota = Quota(FAKE, INPUT_PER_MIN, OUTPUT_PER_MIN, CONCURRENT_MAX)
    tenant = Tenant(TenantId("small"), quotas=(quota,))
    script = script_of(*["word "] * REPLY_TOKENS, prefill_tokens_per_s=10_000.0)
    keys = [TenantKeys(tenant, (hash_api_key(TEST_KEY),))]
    async with scripted_platform(tmp_path, {"fake": script}, tenants=keys) as scripted:
        yield scripted


def ask(*, prompt_tokens=10, max_output_tokens=20, n=1):
    prompt = tuple(range(32, 32 + prompt_tokens))
    return Ask(FAKE, prompt, SamplingParams(temperature=0.0), max_output_tokens, n=n)


def used(admission, principal):
    limits = admission.limits(principal, FAKE)
    return (
        INPUT_PER_MIN - limits.input_tokens.remaining,
        OUTPUT_PER_MIN - limits.output_tokens.remaining,
        CONCURRENT_MAX - limits.requests.remaining,
    )


async def test_a_thousand_requests_at_once_stay_within_every_limit(scripted):
    admission = scripted.platform.admission
    principal = admission.authenticate(TEST_KEY)
    outputs, inputs, refusals = [], [], 0

    async def client() -> None:
        nonlocal refusals
        try:
            (generation,) = admission.enter(principal, ask())
        except QuotaExceeded:
            refusals += 1
            return
        assert used(admission, principal)[2] <= CONCURRENT_MAX
        tokens = [chunk async for chunk in generation]
        outputs.append(sum(len(chunk.token_ids) for chunk in tokens))
        inputs.append(generation.ended.usage.uncached_tokens)

    for _ in range(10):
        await asyncio.gather(*(client() for _ in range(100)))
    assert refusals + len(outputs) == 1_000
    assert len(outputs) >= CONCURRENT_MAX
    assert refusals > 0
    assert used(admission, principal) == (sum(inputs), sum(outputs), 0)
    assert sum(outputs) <= OUTPUT_PER_MIN
    assert sum(inputs) <= INPUT_PER_MIN


async def test_cancelled_request_gives_everything_back_that_it_did_not_use(scripted):
    admission = scripted.platform.admission
    principal = admission.authenticate(TEST_KEY)
    generations = admission.enter(principal, ask(n=3))
    assert used(admission, principal) == (10, 60, 3)
    for generation in generations:
        generation.cancel()
    input_tokens, output_tokens, running = used(admission, principal)
    assert (output_tokens, running) == (0, 0)
    assert input_tokens in (0, 10), "free if it still waited"


async def test_requests_that_end_with_the_server_hold_nothing(scripted):
    admission = scripted.platform.admission
    principal = admission.authenticate(TEST_KEY)
    (generation,) = admission.enter(principal, ask())
    await scripted.platform.dispatcher.close()
    with pytest.raises(Unavailable):
        [chunk async for chunk in generation]
    _, output_tokens, running = used(admission, principal)
    assert (output_tokens, running) == (generation.usage_so_far().output_tokens, 0)
