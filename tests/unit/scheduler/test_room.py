"""Is a replica with room found, and the emptiest one preferred?"""

from mantle.core.ids import ReplicaId
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import a_replica, a_request


def two_replicas(**second):
    scheduler = Scheduler()
    scheduler.replica_ready(a_replica("m#1", slots=4, kv_tokens=1_000), 0.0)
    scheduler.replica_ready(a_replica("m#2", **second), 0.0)
    return scheduler


def test_load_spreads_over_replicas():
    scheduler = two_replicas(slots=4)
    for _ in range(6):
        scheduler.submit([a_request()], 0.0)
    assert [len(r.running) for r in scheduler.residents.replicas()] == [3, 3]


def test_replica_with_few_slots_but_much_memory_is_found():
    scheduler = two_replicas(slots=1, kv_tokens=1_000)
    scheduler.submit([a_request(prompt_tokens=500)], 0.0)
    (dispatch,) = scheduler.submit([a_request(prompt_tokens=900)], 0.0)
    assert dispatch.replica_id == ReplicaId("m#2")


def test_draining_replica_gets_nothing_though_it_has_most_room():
    scheduler = two_replicas(slots=8)
    scheduler.replica_draining(ReplicaId("m#2"))
    (dispatch,) = scheduler.submit([a_request()], 0.0)
    assert dispatch.replica_id == ReplicaId("m#1")


def test_room_that_was_given_back_is_found_again():
    scheduler = two_replicas(slots=4)
    requests = [a_request() for _ in range(8)]
    scheduler.submit(requests, 0.0)
    scheduler.released(requests[3].id, 0.0)
    assert len(scheduler.submit([a_request()], 0.0)) == 1
    assert scheduler.submit([a_request()], 0.0) == []


def test_lost_replica_has_no_room():
    scheduler = two_replicas(slots=8)
    scheduler.replica_gone(ReplicaId("m#2"), 0.0)
    (dispatch,) = scheduler.submit([a_request()], 0.0)
    assert dispatch.replica_id == ReplicaId("m#1")
