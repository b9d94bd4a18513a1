"""Who holds how many slots? An index of running attempts by model, lane and tenant.

Invariant: it agrees with `Residents` after every start and release; the heaviest holder and its
newest attempt are found in O(log tenants).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mantle.core.ids import ModelId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap
from mantle.scheduler.running import Running


@dataclass(slots=True)
class LaneHoldings:
    """Running attempts of one lane on one model, by tenant, each tenant's oldest first.

    There is at least one: an empty one is forgotten.
    """

    weight_of: Callable[[TenantId], float]
    _by_tenant: dict[TenantId, dict[RequestId, Running]] = field(default_factory=dict)
    _heaviest: LazyMinHeap[TenantId] = field(init=False)

    def __post_init__(self) -> None:
        self._heaviest = LazyMinHeap(lambda tenant_id: -self._share(tenant_id))

    def count(self, tenant_id: TenantId) -> int:
        """Slots that the tenant holds in this lane."""
        held = self._by_tenant.get(tenant_id)
        return 0 if held is None else len(held)

    def heaviest(self) -> TenantId:
        """The tenant with most slots for its weight."""
        tenant_id = self._heaviest.least()
        assert tenant_id is not None, "empty holdings were left behind"
        return tenant_id

    def heaviest_first(self) -> Iterator[TenantId]:
        """All its tenants; only the first is found in O(log tenants)."""
        heaviest = self.heaviest()
        yield heaviest
        others = self._by_tenant.keys() - {heaviest}
        yield from sorted(others, key=lambda tenant_id: (-self._share(tenant_id), tenant_id))

    def newest_first(self, tenant_id: TenantId) -> Iterator[Running]:
        """The tenant's attempts, the last started first."""
        return reversed(self._by_tenant[tenant_id].values())

    def add(self, running: Running) -> None:
        tenant_id = running.request.tenant_id
        self._by_tenant.setdefault(tenant_id, {})[running.request.id] = running
        self._heaviest.add(tenant_id)

    def remove(self, running: Running) -> bool:
        """True when nothing is left."""
        tenant_id = running.request.tenant_id
        held = self._by_tenant[tenant_id]
        del held[running.request.id]
        if not held:
            del self._by_tenant[tenant_id]
            self._heaviest.discard(tenant_id)
        return not self._by_tenant

    def _share(self, tenant_id: TenantId) -> float:
        return self.count(tenant_id) / self.weight_of(tenant_id)


class Holdings:
    """All running attempts, by model and lane, and the tenants that wait there for more."""

    def __init__(self, weight_of: Callable[[TenantId], float]) -> None:
        self._weight_of = weight_of
        self._lanes: dict[tuple[ModelId, Lane], LaneHoldings] = {}
        self._waiting: dict[tuple[ModelId, Lane], LazyMinHeap[TenantId]] = {}

    def waits(self, model_id: ModelId, lane: Lane, tenant_id: TenantId) -> None:
        """The tenant has something waiting in this lane."""
        key = (model_id, lane)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = LazyMinHeap(lambda tenant: self._share(key, tenant))
            self._waiting[key] = waiting
        waiting.add(tenant_id)

    def rests(self, model_id: ModelId, lane: Lane, tenant_id: TenantId) -> None:
        """The tenant has nothing waiting in this lane any more."""
        waiting = self._waiting[model_id, lane]
        waiting.discard(tenant_id)
        if not waiting:
            del self._waiting[model_id, lane]

    def lightest_waiting(self, model_id: ModelId, lane: Lane) -> TenantId | None:
        """The waiting tenant with fewest slots for its weight."""
        waiting = self._waiting.get((model_id, lane))
        return None if waiting is None else waiting.least()

    def _share(self, key: tuple[ModelId, Lane], tenant_id: TenantId) -> float:
        holdings = self._lanes.get(key)
        held = 0 if holdings is None else holdings.count(tenant_id)
        return held / self._weight_of(tenant_id)

    def of(self, model_id: ModelId, lane: Lane) -> LaneHoldings | None:
        """What runs in this lane on this model; None: nothing."""
        return self._lanes.get((model_id, lane))

    def add(self, running: Running) -> None:
        key = (running.request.model_id, running.request.lane)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = LaneHoldings(self._weight_of)
        lane.add(running)

    def remove(self, running: Running) -> None:
        key = (running.request.model_id, running.request.lane)
        if self._lanes[key].remove(running):
            del self._lanes[key]
        waiting, tenant_id = self._waiting.get(key), running.request.tenant_id
        if waiting is not None and tenant_id in waiting:
            waiting.add(tenant_id)  # its share has fallen
