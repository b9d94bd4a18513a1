"""Does the paper journal commit in groups, wait while full, and stop after a failed fsync?"""

import random
from dataclasses import replace

import pytest

from mantle.core.epoch import FIRST_EPOCH
from mantle.core.errors import JournalFault
from mantle.core.ids import ReplicaId, RequestId
from mantle.journal.record import Accepted, Dispatched
from mantle.testing.requests import a_request
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import InvariantBroken
from mantle.testing.sim_cluster.paper_journal import PaperDisk, PaperJournal
from mantle.testing.sim_cluster.paper_store import PaperStore

COMMIT_MS = 10.0


class World:
    def __init__(self, seed=0):
        self.events = EventQueue()
        self.disk = PaperDisk(random.Random(seed), (COMMIT_MS, COMMIT_MS))
        self.commits, self.told, self.failures = [], [], []
        self.store = PaperStore(lambda records: self.commits.append(len(records)))
        self.journal = PaperJournal(
            self.store, self.disk, self.events, lambda: self.failures.append(self.events.at_ms)
        )

    def append(self, name):
        request = replace(a_request(), id=RequestId(name))
        self.journal.append([Accepted(request)], lambda: self.told.append(name))

    def run(self):
        while self.events.run_next():
            pass


def test_commit_takes_all_that_gathered_while_the_last_one_ran():
    world = World()
    for name in ("a", "b", "c"):
        world.append(name)
    assert world.told == []
    world.run()
    assert (world.commits, world.told) == ([1, 2], ["a", "b", "c"])
    assert world.events.at_ms == pytest.approx(2 * COMMIT_MS)


def test_full_store_only_delays():
    world = World()
    world.disk.full_until_ms = 900.0
    world.append("a")
    world.events.run_next()
    assert (world.told, bool(world.journal.trouble)) == ([], True)
    world.run()
    assert (world.told, world.journal.trouble) == (["a"], "")
    assert world.events.at_ms > 900.0


def test_slow_disk_takes_longer():
    world = World()
    world.disk.slow_until_ms = 1.0
    world.append("a")
    world.run()
    low, high = world.disk.commit_ms_slow
    assert low <= world.events.at_ms <= high


@pytest.mark.parametrize("seed", range(4))
def test_after_a_failed_fsync_nothing_is_acknowledged(seed):
    world = World(seed)
    world.disk.next_fsync_fails = True
    world.append("a")
    world.append("b")
    world.run()
    assert (world.told, world.failures) == ([], [COMMIT_MS])
    with pytest.raises(JournalFault):
        world.append("c")


def test_what_was_in_flight_at_a_death_may_be_durable_and_the_rest_is_not():
    found = set()
    for seed in range(20):
        world = World(seed)
        world.append("a")
        world.append("b")
        world.journal.die()
        world.run()
        assert world.told == []
        found.add(tuple(request_id for request_id, _ in world.store.recover().orphans))
        with pytest.raises(InvariantBroken, match="has died"):
            world.append("c")
    assert found == {(), ("a",)}


def test_older_epoch_is_refused():
    world = World()
    world.append("a")
    request_id, replica_id = RequestId("a"), ReplicaId("m#1")
    world.journal.append([Dispatched(request_id, 2, replica_id)], lambda: None)
    with pytest.raises(JournalFault, match="older epoch"):
        world.journal.append([Dispatched(request_id, FIRST_EPOCH, replica_id)], lambda: None)
