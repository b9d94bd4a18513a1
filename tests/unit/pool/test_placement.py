"""Which model is where, and is memory never promised twice?"""

import pytest

from mantle.core.ids import ModelId, ReplicaId, WorkerId
from mantle.pool.placement import (
    DrainReplica,
    LoadReplica,
    Placement,
    PlacementRules,
    RefuseModel,
    UnloadReplica,
)
from mantle.pool.port import Demand, ResidencyState

W = WorkerId("w0")
M, N = ModelId("m"), ModelId("n")
M1, N2 = ReplicaId("m#1"), ReplicaId("n#2")
NOW = Demand(100.0, 0.0)
LONG = Demand(100.0, 60_000.0)


@pytest.fixture
def placement():
    placement = Placement(PlacementRules(), {M: 60, N: 60, ModelId("huge"): 1_000}.__getitem__)
    placement.worker_up(W, 100)
    return placement


def load(placement, model, replica_id, now_ms=0.0):
    (effect,) = placement.decide({model: NOW}, {}, now_ms)
    assert effect == LoadReplica(replica_id, W, model)
    placement.loaded(replica_id, 60, now_ms)


def test_wanted_model_is_loaded_once(placement):
    load(placement, M, M1)
    assert placement.decide({M: NOW}, {}, 1.0) == []
    assert placement.residency(M) is ResidencyState.READY
    assert placement.free_bytes(W) == 40


def test_idle_model_makes_room_after_its_minimum_stay(placement):
    load(placement, M, M1)
    assert placement.decide({N: NOW}, {}, 1_000.0) == []
    effects = placement.decide({N: NOW}, {}, 2_500.0)
    assert effects == [DrainReplica(M1), UnloadReplica(M1, W)]
    assert placement.decide({N: NOW}, {}, 2_600.0) == []  # its memory is still held
    placement.unloaded(M1)
    assert placement.decide({N: NOW}, {}, 2_700.0) == [LoadReplica(N2, W, N)]


def test_running_request_is_not_cut_off_by_a_swap(placement):
    load(placement, M, M1)
    running = {M1: 1}
    assert placement.decide({N: NOW}, running, 10_000.0) == []
    assert placement.decide({N: LONG}, running, 11_000.0) == [DrainReplica(M1)]
    assert placement.decide({N: LONG}, running, 12_000.0) == []
    assert placement.decide({N: LONG}, {}, 13_000.0) == [UnloadReplica(M1, W)]


def test_model_in_demand_keeps_its_place_until_the_other_has_waited_long(placement):
    load(placement, M, M1)
    assert placement.decide({M: NOW, N: NOW}, {}, 10_000.0) == []
    assert DrainReplica(M1) in placement.decide({M: NOW, N: LONG}, {}, 11_000.0)


def test_failed_load_is_told_with_its_reason_and_tried_again_later(placement):
    placement.decide({M: NOW}, {}, 0.0)
    effects = placement.load_failed(M1, "bad weights", 0.0)
    assert effects == [RefuseModel(M, "bad weights", 5_000.0)]
    assert placement.residency(M) is ResidencyState.FAILED
    (again,) = placement.decide({M: NOW}, {}, 1_000.0)
    assert again == RefuseModel(M, "bad weights", 4_000.0)
    assert placement.decide({M: NOW}, {}, 6_000.0) == [LoadReplica(ReplicaId("m#2"), W, M)]


def test_load_that_takes_too_long_has_failed(placement):
    placement.decide({M: NOW}, {}, 0.0)
    effects = placement.decide({M: NOW}, {}, 121_000.0)
    assert effects[0] == UnloadReplica(M1, W)
    assert isinstance(effects[1], RefuseModel)


def test_model_larger_than_every_budget_is_refused(placement):
    (effect,) = placement.decide({ModelId("huge"): NOW}, {}, 0.0)
    assert isinstance(effect, RefuseModel)
    assert "memory budget" in effect.reason


def test_lost_worker_takes_its_replicas_with_it(placement):
    load(placement, M, M1)
    assert [r.id for r in placement.worker_down(W)] == [M1]
    assert placement.residency(M) is ResidencyState.UNLOADED
    assert placement.decide({M: NOW}, {}, 1.0) == []
    placement.worker_up(W, 100)
    assert placement.decide({M: NOW}, {}, 2.0) == [LoadReplica(ReplicaId("m#2"), W, M)]


def test_overdue_load_holds_its_memory_until_the_worker_has_let_go(placement):
    placement.decide({M: NOW}, {}, 0.0)
    placement.decide({M: NOW}, {}, 121_000.0)
    assert placement.free_bytes(W) == 40
    assert placement.loaded(M1, 60, 122_000.0) is None
    placement.unloaded(M1)
    assert placement.free_bytes(W) == 100
