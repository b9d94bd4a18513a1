"""What if the journal is slow? State moves on at once; readers see only what is committed."""

import asyncio

from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason, Outcome
from mantle.journal.history import request_history
from mantle.journal.record import Accepted, Finished, Parked, Trimmed
from mantle.testing.scripts import script_of
from tests.unit.scheduler.dispatcher_world import LETTERS, read, turns, world


def history_of(journal, generation):
    """What the journal says of one request."""
    mine = [
        r
        for r in journal.records
        if (r.request.id if isinstance(r, Accepted) else r.request_id) == generation.request.id
    ]
    return request_history(mine)


async def test_worker_lost_before_the_commit_loses_and_doubles_nothing(tmp_path):
    async with world(tmp_path, script_of(*LETTERS)) as w:
        w.dispatcher.start()
        generation = w.submit(max_output_tokens=26)
        await anext(aiter(generation))
        w.journal.held = True
        for _ in range(4):
            await turns(3)
        assert 1 < history_of(w.journal, generation).output_count < 26
        w.links[0].kill()
        await turns()
        w.journal.release()
        async with asyncio.timeout(5):
            rest = await read(generation)
        replayed = [token async for chunk in generation.replay() for token in chunk.token_ids]
        assert bytes(replayed).decode() == "".join(LETTERS)
        assert replayed[-len(rest) :] == rest
        assert history_of(w.journal, generation).output == replayed


async def test_slot_is_free_before_the_end_is_committed(tmp_path):
    async with world(tmp_path, script_of("ab"), slots=1) as w:
        await read(w.submit())
        w.journal.held = True
        first, second = w.submit(), w.submit()
        await turns()
        assert {r.request_id for r in w.journal.of(Finished)} >= {
            first.request.id,
            second.request.id,
        }
        assert first.ended is None
        w.journal.release()
        assert len(await read(first)) == len(await read(second)) == 1


async def test_parked_before_the_commit_goes_on_behind_what_was_written(tmp_path):
    async with world(tmp_path, script_of(*LETTERS), slots=1) as w:
        flex = w.submit(lane=Lane.FLEX, max_output_tokens=26)
        shown = list((await anext(aiter(flex))).token_ids)
        w.journal.held = True
        w.clock.advance(1_000)
        urgent = w.submit(lane=Lane.PRIORITY, max_output_tokens=3)
        await turns(60)
        assert w.journal.of(Parked)
        w.journal.release()
        assert len(await read(urgent)) == 3
        assert bytes(shown + await read(flex)).decode() == "".join(LETTERS)


async def test_stop_string_found_after_the_end_was_written_trims_the_usage(tmp_path):
    async with world(tmp_path, script_of("ab", "cd")) as w:
        await read(w.submit())
        w.journal.held = True
        generation = w.submit()
        await turns()
        generation.stop_at(1)
        w.journal.release()
        assert generation.ended.finish is FinishReason.STOP_STRING
        assert generation.ended.usage.output_tokens == 1
        (trimmed,) = w.journal.of(Trimmed)
        assert trimmed.usage.output_tokens == 1
        history = history_of(w.journal, generation)
        assert history.finished.outcome is Outcome.COMPLETED
        assert history.finished.usage.output_tokens == 1


async def test_replay_reads_all_from_the_first_token_beside_the_owner(tmp_path):
    async with world(tmp_path, script_of(*LETTERS)) as w:
        generation = w.submit(max_output_tokens=26)
        await anext(aiter(generation))
        late = [token async for chunk in generation.replay() for token in chunk.token_ids]
        assert bytes(late).decode() == "".join(LETTERS)
        assert len(await read(generation)) == 25
