"""Is every accepted request ended once, and shown only tokens that are its own?"""

import asyncio

import pytest

from mantle.core.errors import (
    DeadlineExceeded,
    EngineFailed,
    LoadFailed,
    ReplicaLost,
    Unavailable,
    WaitExceeded,
)
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.script import Fault
from mantle.journal.record import Accepted, Dispatched, Finished, Tokens
from mantle.testing.scripts import script_of
from tests.unit.scheduler.dispatcher_world import FAKE, LETTERS, read, turns, world


async def test_reads_all_tokens_and_the_end(tmp_path):
    async with world(tmp_path, script_of("ab", "cd", "ef")) as w:
        generation = w.submit()
        tokens = await read(generation)
        assert len(tokens) == 3
        assert generation.ended.finish is FinishReason.END
        assert generation.ended.usage.output_tokens == 3
        assert generation.ended.usage.input_tokens == 10
        assert w.journal.live_count() == 0


async def test_journal_sees_the_whole_road_in_order(tmp_path):
    async with world(tmp_path, script_of("ab", "cd")) as w:
        generation = w.submit()
        tokens = await read(generation)
        kinds = [type(r) for r in w.journal.records]
        assert kinds[0] is Accepted
        assert kinds[1] is Dispatched
        assert kinds[-1] is Finished
        assert [t for r in w.journal.of(Tokens) for t in r.token_ids] == tokens
        assert w.journal.of(Finished)[0].outcome is Outcome.COMPLETED


async def test_no_token_is_shown_before_the_journal_has_it(tmp_path):
    async with world(tmp_path, script_of("ab", "cd")) as w:
        await read(w.submit())  # the model is loaded now
        w.journal.held = True
        generation = w.submit()
        reading = asyncio.create_task(read(generation))
        await turns()
        assert w.journal.of(Tokens)[-1].request_id == generation.request.id
        assert generation.output_tokens == 0
        assert not reading.done()
        w.journal.release()
        assert len(await reading) == 2


async def test_cancel_while_running_stops_the_engine(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True)) as w:
        generation = w.submit(max_output_tokens=80)
        await anext(aiter(generation))
        generation.cancel()
        generation.cancel()
        await turns()
        steps = w.links[0].step_count
        await turns()
        assert w.links[0].step_count == steps
        assert w.journal.of(Finished)[0].outcome is Outcome.CANCELLED
        assert w.dispatcher.running_counts() == {}


async def test_cancel_while_waiting_never_starts(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True), slots=1) as w:
        first = w.submit(max_output_tokens=80)
        await anext(aiter(first))
        second = w.submit()
        assert second.queue_view().position == 0
        second.cancel()
        first.cancel()
        await turns()
        dispatched = {r.request_id for r in w.journal.of(Dispatched)}
        assert second.request.id not in dispatched
        assert w.dispatcher.waiting_counts() == {}


async def test_stop_at_counts_as_completed_with_the_tokens_shown(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True)) as w:
        generation = w.submit(max_output_tokens=80)
        await anext(aiter(generation))
        generation.stop_at(1)
        assert generation.ended.finish is FinishReason.STOP_STRING
        assert w.journal.of(Finished)[0].usage.output_tokens == 1


async def test_killed_worker_does_not_break_a_talking_stream(tmp_path):
    async with world(tmp_path, script_of(*LETTERS)) as w:
        w.dispatcher.start()
        generation = w.submit(max_output_tokens=26)
        shown = list((await anext(aiter(generation))).token_ids)
        w.links[0].kill()
        async with asyncio.timeout(5):
            shown += await read(generation)
        assert bytes(shown).decode() == "".join(LETTERS)
        assert generation.ended.usage.output_tokens == 26
        assert w.supervisor.restarts == 1


async def test_stream_that_kills_every_worker_ends_with_an_error(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True)) as w:
        w.dispatcher.start()
        generation = w.submit(max_output_tokens=80)
        shown = []

        async def read_and_kill():
            async for chunk in generation:
                shown.extend(chunk.token_ids)
                w.links[-1].kill()

        async with asyncio.timeout(20):
            with pytest.raises(ReplicaLost):
                await read_and_kill()
        assert len(shown) < 80
        assert w.journal.of(Finished)[0].outcome is Outcome.FAILED


async def test_killed_worker_restarts_and_serves_what_had_shown_nothing(tmp_path):
    async with world(tmp_path, script_of("ab")) as w:
        await read(w.submit())
        w.links[0].hold()
        generation = w.submit()
        await turns()
        assert w.dispatcher.running_counts() == {(Lane.STANDARD, FAKE): 1}
        w.links[0].kill()
        await turns()
        assert w.dispatcher.waiting_counts() == {(Lane.STANDARD, FAKE): 1}
        w.dispatcher.start()
        async with asyncio.timeout(5):
            assert len(await read(generation)) == 1
        assert [r.epoch for r in w.journal.of(Dispatched)][-2:] == [1, 2]
        assert len(w.links) == 2


async def test_late_output_of_a_cancelled_sequence_changes_nothing(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True)) as w:
        generation = w.submit(max_output_tokens=80)
        await anext(aiter(generation))
        produced = generation.output_tokens
        generation.cancel()
        await turns()
        assert generation.output_tokens == produced


async def test_broken_sequence_fails_alone(tmp_path):
    fault = Fault(kind="fail_sequence", after_output_tokens=1)
    async with world(tmp_path, script_of("ab", "cd", fault=fault)) as w:
        broken = w.submit()
        with pytest.raises(EngineFailed):
            await read(broken)
        assert len(await read(w.submit())) == 2


async def test_failed_load_is_told_to_all_who_wait(tmp_path):
    async with world(tmp_path, script_of("ab", fault=Fault(kind="fail_load"))) as w:
        generations = [w.submit(), w.submit()]
        for generation in generations:
            with pytest.raises(LoadFailed):
                await read(generation)
        assert w.journal.live_count() == 0


async def test_expired_in_queue_is_told_why(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True), slots=1) as w:
        first = w.submit(max_output_tokens=80)
        await anext(aiter(first))
        w.links[0].hold()
        late = w.submit(deadline_ms=1_000.0)
        waiting = w.submit()
        w.clock.advance(2_000)
        w.dispatcher.tick()
        with pytest.raises(DeadlineExceeded):
            await read(late)
        w.clock.advance(300_000)
        w.dispatcher.tick()
        with pytest.raises(WaitExceeded):
            await read(waiting)


async def test_closing_ends_live_requests_and_refuses_new_ones(tmp_path):
    async with world(tmp_path, script_of("ab", repeat=True)) as w:
        generation = w.submit(max_output_tokens=80)
        await anext(aiter(generation))
        await w.dispatcher.close()
        with pytest.raises(Unavailable):
            await read(generation)
        with pytest.raises(Unavailable):
            w.submit()


async def test_drain_lets_live_requests_finish(tmp_path):
    async with world(tmp_path, script_of("ab", "cd")) as w:
        generation = w.submit()
        draining = asyncio.create_task(w.dispatcher.drain(seconds_max=5))
        assert len(await read(generation)) == 2
        await draining
        with pytest.raises(Unavailable):
            w.submit()
