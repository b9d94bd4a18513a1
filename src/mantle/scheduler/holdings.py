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
    """Running attempts of one lane on one model, by tenant, each tenant's oldest first."""

    weight_of: Callable[[TenantId], float]
    by_tenant: dict[TenantId, dict[RequestId, Running]] = field(default_factory=dict)
    heaviest: LazyMinHeap[TenantId] = field(init=False)

    def __post_init__(self) -> None:
        self.heaviest = LazyMinHeap(lambda tenant_id: -self.share(tenant_id))

    def count(self, tenant_id: TenantId) -> int:
        return len(self.by_tenant.get(tenant_id, ()))

    def share(self, tenant_id: TenantId) -> float:
        """Slots held, for the tenant's weight."""
        return self.count(tenant_id) / self.weight_of(tenant_id)


class Holdings:
    """All running attempts, by model, lane and tenant."""

    def __init__(self, weight_of: Callable[[TenantId], float]) -> None:
        self._weight_of = weight_of
        self._lanes: dict[tuple[ModelId, Lane], LaneHoldings] = {}

    def add(self, running: Running) -> None:
        request = running.request
        key = (request.model_id, request.lane)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = LaneHoldings(self._weight_of)
        lane.by_tenant.setdefault(request.tenant_id, {})[request.id] = running
        lane.heaviest.add(request.tenant_id)

    def remove(self, running: Running) -> None:
        request = running.request
        key = (request.model_id, request.lane)
        lane = self._lanes[key]
        held = lane.by_tenant[request.tenant_id]
        del held[request.id]
        if not held:
            del lane.by_tenant[request.tenant_id]
            lane.heaviest.discard(request.tenant_id)
        if not lane.by_tenant:
            del self._lanes[key]

    def count(self, model_id: ModelId, lane: Lane, tenant_id: TenantId) -> int:
        """Slots that the tenant holds in this lane."""
        holdings = self._lanes.get((model_id, lane))
        return 0 if holdings is None else holdings.count(tenant_id)

    def heaviest(self, model_id: ModelId, lane: Lane) -> TenantId | None:
        """The tenant with most slots for its weight in this lane."""
        holdings = self._lanes.get((model_id, lane))
        return None if holdings is None else holdings.heaviest.least()

    def newest_first(self, model_id: ModelId, lane: Lane, tenant_id: TenantId) -> Iterator[Running]:
        """The tenant's attempts in this lane, the last started first."""
        holdings = self._lanes.get((model_id, lane))
        if holdings is not None:
            yield from reversed(list(holdings.by_tenant.get(tenant_id, {}).values()))

    def tenants(self, model_id: ModelId, lane: Lane) -> list[TenantId]:
        """Tenants that hold a slot in this lane, the heaviest first."""
        holdings = self._lanes.get((model_id, lane))
        if holdings is None:
            return []
        return sorted(holdings.by_tenant, key=lambda t: (-holdings.share(t), t))
