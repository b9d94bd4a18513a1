"""Does a request keep its stream and its account through parks, losses and deadlines?"""

import asyncio

import pytest

from mantle.core.errors import (
    DeadlineExceeded,
)
from mantle.core.lane import Lane
from mantle.core.outcome import Outcome
from mantle.journal.record import Dispatched, Finished
from mantle.pool.supervisor import Supervisor
from mantle.testing.scripts import script_of
from tests.unit.scheduler.dispatcher_world import LETTERS, read, turns, world

# --- parking ------------------------------------------------------------------------------------


async def park_one(w):
    """A flex stream that talks, and a priority request that takes its slot."""
    flex = w.submit(lane=Lane.FLEX, max_output_tokens=26)
    chunk = await anext(aiter(flex))
    w.clock.advance(1_000)
    urgent = w.submit(lane=Lane.PRIORITY, max_output_tokens=3)
    return flex, list(chunk.token_ids), urgent


async def test_parked_stream_is_one_unbroken_stream(tmp_path):
    async with world(tmp_path, script_of(*LETTERS), slots=1) as w:
        flex, shown, urgent = await park_one(w)
        assert len(await read(urgent)) == 3
        shown += await read(flex)
        assert shown == [ord(letter) for letter in LETTERS]
        assert flex.ended.usage.output_tokens == 26
        assert flex.ended.usage.input_tokens == 10
        assert [r.epoch for r in w.journal.of(Dispatched) if r.request_id == flex.request.id] == [
            1,
            2,
        ]
        assert w.dispatcher.running_counts() == {}


async def test_reader_of_a_parked_stream_may_leave(tmp_path):
    async with world(tmp_path, script_of(*LETTERS, repeat=True), slots=1) as w:
        flex, _, urgent = await park_one(w)
        await anext(aiter(urgent))
        flex.cancel()
        await turns()
        assert w.dispatcher.waiting_counts() == {}
        urgent.cancel()
        await turns()
        assert w.journal.live_count() == 0


async def test_reader_may_leave_before_the_engine_has_let_go(tmp_path):
    async with world(tmp_path, script_of(*LETTERS, repeat=True), slots=1) as w:
        w_flex = w.submit(lane=Lane.FLEX, max_output_tokens=26)
        await anext(aiter(w_flex))
        w.links[0].hold()
        w.clock.advance(1_000)
        urgent = w.submit(lane=Lane.PRIORITY, max_output_tokens=3)
        w_flex.cancel()
        w.links[0].release()
        assert len(await read(urgent)) == 3
        assert w.journal.live_count() == 0


async def test_stream_is_parked_and_resumed_many_times(tmp_path):
    async with world(tmp_path, script_of(*LETTERS), slots=1) as w:
        flex = w.submit(lane=Lane.FLEX, max_output_tokens=26)
        shown = list((await anext(aiter(flex))).token_ids)
        for _ in range(5):
            w.clock.advance(1_000)
            await read(w.submit(lane=Lane.PRIORITY, max_output_tokens=1))
            shown += (await anext(aiter(flex))).token_ids
        shown += await read(flex)
        assert bytes(shown).decode() == "".join(LETTERS)


async def test_worker_lost_while_a_request_is_parked_does_not_lose_it(tmp_path):
    async with world(tmp_path, script_of(*LETTERS), slots=1) as w:
        w.dispatcher.start()
        flex, shown, urgent = await park_one(w)
        await anext(aiter(urgent))
        assert flex.request.id in w.dispatcher._scheduler.queues
        w.links[0].kill()
        async with asyncio.timeout(5):
            shown += await read(flex)
        assert bytes(shown).decode() == "".join(LETTERS)


# --- deadlines, faults, second attempts ---------------------------------------------------------
async def test_deadline_ends_a_running_request_too(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True), slots=1) as w:
        generation = w.submit(max_output_tokens=80, deadline_ms=500.0)
        await anext(aiter(generation))
        w.clock.advance(1_000)
        w.dispatcher.tick()
        with pytest.raises(DeadlineExceeded):
            await read(generation)
        await turns()
        steps = w.links[0].step_count
        await turns()
        assert w.links[0].step_count == steps
        assert w.dispatcher.running_counts() == {}
        assert w.journal.of(Finished)[0].outcome is Outcome.EXPIRED


class FailingPool(Supervisor):
    """A pool with a bug."""

    faulty = False

    def __init__(self, **parts):
        super().__init__(**parts)
        self.failed = asyncio.Event()

    def rebalance(self, demand, running):
        if self.faulty:
            self.failed.set()
            raise RuntimeError("a bug")
        super().rebalance(demand, running)


async def test_a_failing_tick_does_not_end_the_ticks(tmp_path):
    async with world(tmp_path, script_of("ab"), slots=1, pool=FailingPool) as w:
        w.dispatcher.start()
        w.supervisor.faulty = True
        async with asyncio.timeout(5):
            await w.supervisor.failed.wait()
        assert w.dispatcher.tick_faults == 1
        w.supervisor.faulty = False
        async with asyncio.timeout(5):
            assert len(await read(w.submit())) == 1


async def test_prompt_is_paid_for_though_its_first_attempt_was_lost(tmp_path):
    script = script_of("ab", "cd", prefix_reuse=True)
    async with world(tmp_path, script, slots=1) as w:
        await read(w.submit())
        w.dispatcher.start()
        w.links[0].hold()
        generation = w.submit(prompt_tokens=20)
        await turns()
        w.links[0].kill()
        async with asyncio.timeout(5):
            await read(generation)
        assert generation.ended.usage.cached_tokens == 0
        assert generation.ended.usage.input_tokens == 20


async def test_victim_that_ended_in_the_same_step_is_left_alone(tmp_path):
    async with world(tmp_path, script_of(*LETTERS), slots=2) as w:
        await read(w.submit(max_output_tokens=1))  # the model is there from now on
        w.links[0].hold()
        lower = [w.submit(lane=Lane.FLEX, max_output_tokens=2) for _ in range(2)]
        higher = [w.submit(lane=Lane.PRIORITY, max_output_tokens=2) for _ in range(2)]
        w.clock.advance(1_000)  # the first slot that is free lets a second request look for one
        w.links[0].release()
        async with asyncio.timeout(5):
            assert [len(await read(generation)) for generation in lower + higher] == [2] * 4
        assert [end.outcome for end in w.journal.of(Finished)] == [Outcome.COMPLETED] * 5
        assert w.dispatcher.running_counts() == {}
