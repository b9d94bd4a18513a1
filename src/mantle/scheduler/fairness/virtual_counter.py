"""Who has had the least, for its weight? Weighted virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with weights and with
estimates that are corrected later. Invariant: a tenant that was idle is lifted to the least
counter of the backlogged ones, so that idleness never banks credit; two tenants that stay
backlogged differ in served cost a weight by at most 2·U, U the largest cost in flight at once.
"""

from collections.abc import Callable

from mantle.core.ids import ModelId, TenantId
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap


class VirtualTokenCounter:
    """Implements `Fairness`. `weight_of` is read at each charge, so weights change at run time."""

    def __init__(self, weight_of: Callable[[TenantId], float]) -> None:
        self._weight_of = weight_of
        self._counter: dict[TenantId, float] = {}
        self._waiting: dict[ModelId, LazyMinHeap[TenantId]] = {}
        self._active: LazyMinHeap[TenantId] = LazyMinHeap(self._value_of)
        self._models_waited: dict[TenantId, int] = {}
        self._floor = 0.0  # where the least counter was last seen: start of a newcomer when idle

    def backlogged(self, tenant_id: TenantId, model_id: ModelId) -> None:
        heap = self._waiting.get(model_id)
        if heap is None:
            heap = self._waiting[model_id] = LazyMinHeap(self._value_of)
        if tenant_id in heap:
            return
        waited = self._models_waited.get(tenant_id, 0)
        if waited == 0:
            self._lift(tenant_id)
            self._active.add(tenant_id)
        self._models_waited[tenant_id] = waited + 1
        heap.add(tenant_id)

    def drained(self, tenant_id: TenantId, model_id: ModelId) -> None:
        heap = self._waiting.get(model_id)
        if heap is None or tenant_id not in heap:
            return
        heap.discard(tenant_id)
        if not heap:
            del self._waiting[model_id]
        self._models_waited[tenant_id] -= 1
        if self._models_waited[tenant_id] == 0:
            del self._models_waited[tenant_id]
            self._active.discard(tenant_id)
            self._floor = max(self._floor, self._value_of(tenant_id))

    def pick(self, model_id: ModelId) -> TenantId | None:
        heap = self._waiting.get(model_id)
        return None if heap is None else heap.least()

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        self._counter[tenant_id] = self._value_of(tenant_id) + cost / self._weight_of(tenant_id)
        if cost < 0:
            self._reseat(tenant_id)

    def counter(self, tenant_id: TenantId) -> float:
        """Virtual token cost served to the tenant, divided by its weight."""
        return self._value_of(tenant_id)

    def _value_of(self, tenant_id: TenantId) -> float:
        return self._counter.get(tenant_id, 0.0)

    def _lift(self, tenant_id: TenantId) -> None:
        least = self._active.least()
        start = self._floor if least is None else self._value_of(least)
        self._counter[tenant_id] = max(self._value_of(tenant_id), start)

    def _reseat(self, tenant_id: TenantId) -> None:
        if tenant_id in self._active:
            self._active.add(tenant_id)
        for heap in self._waiting.values():
            if tenant_id in heap:
                heap.add(tenant_id)
