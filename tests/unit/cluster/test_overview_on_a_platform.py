"""Does what really runs and waits show in reports and metrics?"""

import pytest

from mantle.admission.port import Ask
from mantle.cluster.config_model import Config
from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.core.sampling import SamplingParams
from mantle.engine.port import EngineSettings
from mantle.testing.platform import TEST_KEY, scripted_platform
from mantle.testing.scripts import script_of

FAKE = ModelId("fake")


@pytest.fixture
async def platform(tmp_path):
    config = Config(engine=EngineSettings(slots=1))
    script = script_of("a", "b", repeat=True)
    async with scripted_platform(tmp_path, {"fake": script}, config=config) as scripted:
        yield scripted.platform


def enter(platform, *, max_output_tokens):
    ask = Ask(FAKE, tuple(range(32, 42)), SamplingParams(temperature=0.0), max_output_tokens)
    (generation,) = platform.admission.enter(platform.admission.authenticate(TEST_KEY), ask)
    return generation


async def read(generation):
    return [token async for chunk in generation for token in chunk.token_ids]


async def test_report_and_queue_follow_a_request_from_queue_to_end(platform):
    overview = platform.parts.overview
    await read(enter(platform, max_output_tokens=5))
    first = enter(platform, max_output_tokens=200)
    second = enter(platform, max_output_tokens=5)
    (line,) = overview.queues().queues
    assert (line.lane, line.tenant_id, line.model_id) == (Lane.STANDARD, "tester", FAKE)
    assert line.queued == 1
    (replica,) = overview.queues().replicas
    assert (replica.model_id, replica.slots, replica.running) == (FAKE, 1, 1)
    (share,) = overview.shares().tenants
    assert (share.running, share.queued) == (1, 1)
    await read(first)
    await read(second)
    (share,) = overview.shares().tenants
    assert (share.running, share.queued, share.waits.count) == (0, 0, 3)
    assert share.waits.ms_p99 > 0
    assert share.served_cost == 3 * 10 + 2 * 210
    assert overview.queues().queues == ()


async def test_error_of_the_estimated_wait_is_in_the_metrics(platform):
    generations = [enter(platform, max_output_tokens=20) for _ in range(4)]
    for generation in generations:
        await read(generation)
    generations = [enter(platform, max_output_tokens=20) for _ in range(4)]  # a pace is known
    for generation in generations:
        await read(generation)
    shown = platform.metrics.render()[0].decode().splitlines()
    labels = '{lane="standard",model="fake"}'
    assert f"mantle_wait_estimate_error_seconds_count{labels} 3.0" in shown


async def test_certificate_is_in_the_metrics(platform):
    await read(enter(platform, max_output_tokens=5))
    shown = platform.metrics.render()[0].decode().splitlines()
    assert 'mantle_fairness_certificate{lane="standard",model="fake"} 0.0' in shown
    assert 'mantle_fairness_certificate_highest{lane="standard",model="fake"} 0.0' in shown
