"""Is something acknowledged only when it is durable, in order, and never after a failure?"""

import asyncio
import threading

import pytest

from mantle.core.epoch import Epoch
from mantle.core.errors import JournalFault
from mantle.journal.port import Recovered
from mantle.journal.record import Dispatched
from mantle.journal.store_port import Opening, StoreBroken, StoreFull
from mantle.journal.stores.sqlite import SqliteStore
from mantle.journal.writer import DurableJournal, Policy
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, tokens


class HeldStore:
    """Commits when it is let; may fail. What it holds is what is durable."""

    def __init__(self):
        self.durable = []
        self.batches = 0
        self.fails_with = []
        self.forgotten = []
        self.forgetting_fails_with = []
        self.may_commit = threading.Semaphore(0)
        self.tries = threading.Semaphore(0)

    def commit(self, records):
        self.tries.release()
        assert self.may_commit.acquire(timeout=20)
        if self.fails_with:
            raise self.fails_with.pop(0)
        self.durable += records
        self.batches += 1

    def recover(self):
        return Recovered()

    def forget(self, finished_before_s):
        self.forgotten.append(finished_before_s)
        if self.forgetting_fails_with:
            raise self.forgetting_fails_with.pop(0)
        return 0

    def close(self):
        pass


class Bench:
    """A journal over a held store, and what it said."""

    def __init__(self, store, policy=Policy.STRICT):
        self.store = store
        self.said = []
        self.failures = []
        self.wall_s = 0.0
        self.failed = asyncio.Event()
        self.journal = DurableJournal(
            store, on_failed=self._note_failure, wall_s=lambda: self.wall_s, policy=policy
        )

    def _note_failure(self, reason):
        self.failures.append(reason)
        self.failed.set()

    def append(self, name, *records):
        """Say `name`, and how much is durable, once it is acknowledged."""
        done = asyncio.Event()

        def committed():
            self.said.append((name, len(getattr(self.store, "durable", []))))
            done.set()

        self.journal.append(records, committed)
        return done


async def soon(event):
    async with asyncio.timeout(20):
        await event.wait()


async def tried(store):
    assert await asyncio.to_thread(store.tries.acquire, timeout=20)


async def test_acknowledged_after_the_commit_and_gathered_meanwhile():
    bench = Bench(HeldStore())
    await bench.journal.recover()
    request = a_request()
    bench.append("first", *begun(request))
    await tried(bench.store)
    for index in range(10):
        last = bench.append(str(index), tokens(request, index, index))
    assert bench.said == []
    bench.store.may_commit.release(2)
    await soon(last)
    assert [name for name, _ in bench.said] == ["first", *map(str, range(10))]
    assert bench.store.batches == 2
    assert all(durable == 12 for _, durable in bench.said[1:])
    await bench.journal.close()


async def test_full_disk_pauses_and_loses_nothing():
    bench = Bench(HeldStore())
    await bench.journal.recover()
    bench.store.fails_with = [StoreFull("full"), StoreFull("full")]
    bench.store.may_commit.release(3)
    done = bench.append("first", *begun(a_request()))
    await tried(bench.store)
    await tried(bench.store)
    assert bench.journal.trouble == "full"
    assert bench.said == []
    await soon(done)
    assert bench.journal.trouble == ""
    assert bench.failures == []
    await bench.journal.close()


async def test_failed_fsync_is_the_end():
    bench = Bench(HeldStore())
    await bench.journal.recover()
    bench.store.fails_with = [StoreBroken("unknown")]
    bench.store.may_commit.release(5)
    request = a_request()
    bench.append("first", *begun(request))
    await soon(bench.failed)
    assert bench.failures == ["unknown"]
    assert bench.said == []
    with pytest.raises(JournalFault):
        bench.append("second", tokens(request, 0, 1))
    await bench.journal.close()
    assert bench.store.durable == []


async def test_relaxed_acknowledges_at_once_and_commits_soon(tmp_path):
    store = SqliteStore(tmp_path)
    bench = Bench(store, Policy.RELAXED)
    await bench.journal.recover()
    request = a_request()
    bench.append("first", *begun(request), ask_of(request))
    assert [name for name, _ in bench.said] == ["first"]
    await bench.journal.close()
    assert len(SqliteStore(tmp_path, opening=Opening.READING).recover().asks) == 1


async def test_closing_commits_what_is_queued(tmp_path):
    bench = Bench(SqliteStore(tmp_path))
    await bench.journal.recover()
    request = a_request()
    bench.append("first", *begun(request), ask_of(request))
    bench.append("second", tokens(request, 0, 1, 2))
    await bench.journal.close()
    (ask,) = SqliteStore(tmp_path, opening=Opening.READING).recover().asks
    assert ask.requests[0].output == [1, 2]


async def test_zombie_of_an_older_epoch_is_refused_after_a_restart(tmp_path):
    request = a_request()
    first = Bench(SqliteStore(tmp_path))
    await first.journal.recover()
    again = [*begun(request), Dispatched(request.id, Epoch(3), "w0/fake"), ask_of(request)]
    first.append("first", *again)
    await first.journal.close()
    second = Bench(SqliteStore(tmp_path))
    await second.journal.recover()
    with pytest.raises(JournalFault):
        second.append("late", tokens(request, 0, 1, epoch=2))
    second.append("right", tokens(request, 0, 1, epoch=3))
    await second.journal.close()


async def test_what_is_over_is_erased_under_steady_traffic_too():
    bench = Bench(HeldStore())
    bench.store.forgetting_fails_with = [StoreFull("full")]
    await bench.journal.recover()
    request = a_request()
    bench.store.may_commit.release(3)
    await soon(bench.append("first", *begun(request)))
    assert bench.store.forgotten == []
    for index, wall_s in enumerate((5_000.0, 10_000.0)):
        bench.wall_s = wall_s
        await soon(bench.append("next", tokens(request, index, index)))
    await bench.journal.close()
    assert bench.store.forgotten == [1_400, 6_400], "erasing needs room: a full disk only delays it"
    assert bench.failures == []
