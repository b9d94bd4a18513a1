"""Would the simulator notice? Each broken scheduler or pool must be caught, with its replay."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mantle.core.ids import TenantId
from mantle.pool.placement import Placement
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.fairness.virtual_counter import VirtualTokenCounter
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.run_seed import REAL_PARTS, Parts
from mantle.testing.sim_cluster.scenario import Scenario
from tests.simulation.sabotage import assert_caught, with_scheduler


class FirstComeFirstServed:
    """No fairness: who began to wait first is served until nothing of it waits."""

    def __init__(self) -> None:
        self._waiting: dict[TenantId, None] = {}

    def backlogged(self, tenant_id: TenantId) -> None:
        self._waiting[tenant_id] = None

    def drained(self, tenant_id: TenantId) -> None:
        self._waiting.pop(tenant_id, None)

    def pick(self) -> TenantId | None:
        return next(iter(self._waiting), None)

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        return None

    def produced(self, tenant_id: TenantId, cost: float) -> None:
        pass

    def forget_idle(self, is_busy: Callable[[TenantId], bool]) -> None:
        pass

    def counter(self, tenant_id: TenantId) -> float:
        return 0.0


class NoIdleLift(VirtualTokenCounter):
    """A tenant that was away comes back with all the credit of its absence."""

    def backlogged(self, tenant_id: TenantId) -> None:
        self._waiting.add(tenant_id)


class ForgetsWeights(VirtualTokenCounter):
    """Everybody weighs the same."""

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        super().charge(tenant_id, cost * self._weight_of(tenant_id))


class EvenSlots(Scheduler):
    """Who holds fewest slots goes first, whatever it has had."""

    def _may_go_first(self, waiting, victim):
        return True


class ParkLosesPlace(Scheduler):
    """A parked request starts all over."""

    def parked(self, request_id, now_ms):
        running = self._leaving.get(request_id)
        if running is not None:
            running.produced_tokens = 0
        return super().parked(request_id, now_ms)


class ParkLosesRequest(Scheduler):
    """A parked request is forgotten."""

    def parked(self, request_id, now_ms):
        self._leaving.pop(request_id, None)
        return []


class OverCommitsSlots(Scheduler):
    """It believes that each replica has a slot more."""

    def replica_ready(self, capacity: ReplicaCapacity, now_ms):
        return super().replica_ready(replace(capacity, slots=capacity.slots + 1), now_ms)


class OverCommitsKv(Scheduler):
    """It believes that each replica has twice the KV memory."""

    def replica_ready(self, capacity: ReplicaCapacity, now_ms):
        return super().replica_ready(replace(capacity, kv_tokens=capacity.kv_tokens * 2), now_ms)


class NeverExpires(Scheduler):
    """Who waits too long goes on waiting."""

    def tick(self, now_ms):
        return []


class IdlesAfterEnd(Scheduler):
    """A slot that becomes free stays empty until something else happens."""

    def released(self, request_id, now_ms):
        fill, self._fill = self._fill, lambda *_: []
        effects = super().released(request_id, now_ms)
        self._fill = fill
        return effects


class ForgetsLostReplicas(Scheduler):
    """What ran on a lost replica is gone with it."""

    def replica_gone(self, replica_id, now_ms):
        self.residents.drop_replica(replica_id)
        return []


class GenerousLedger(Placement):
    """It believes that every worker has more memory than it has."""

    def free_bytes(self, worker_id):
        return super().free_bytes(worker_id) + (2 << 30)


def with_fairness(make_fairness: Callable[[Callable[[TenantId], float]], object]) -> Parts:
    def make(scenario: Scenario) -> Scheduler:
        weight_of = scenario.weights.__getitem__
        return Scheduler(
            scenario.rules, weight_of=weight_of, fairness_of=lambda _: make_fairness(weight_of)
        )

    return replace(REAL_PARTS, scheduler=make)


def with_placement(kind: type[Placement]) -> Parts:
    def make(scenario: Scenario) -> Placement:
        return kind(scenario.placement, lambda model_id: scenario.models[model_id].size_bytes)

    return replace(REAL_PARTS, placement=make)


@pytest.mark.parametrize(
    ("parts", "promise"),
    [
        (with_fairness(lambda _: FirstComeFirstServed()), "unfair"),
        (with_fairness(NoIdleLift), "unfair"),
        (with_fairness(ForgetsWeights), "unfair"),
        (with_scheduler(EvenSlots), "unfair"),
        (with_scheduler(ParkLosesPlace), "resumes from"),
        (with_scheduler(ParkLosesRequest), "live, but"),
        (with_scheduler(OverCommitsSlots), "more sequences than slots"),
        (with_scheduler(OverCommitsKv), "KV memory is over-committed"),
        (with_scheduler(NeverExpires), "too long|past its bound"),
        (with_scheduler(IdlesAfterEnd), "has room while requests wait"),
        (with_scheduler(ForgetsLostReplicas), "live, but"),
        (with_placement(GenerousLedger), "memory is over-committed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sabotage_is_caught(parts, promise):
    assert_caught(parts, promise)
