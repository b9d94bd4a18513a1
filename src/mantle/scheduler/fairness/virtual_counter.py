"""Who has had the least, for its weight? Weighted virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with weights and with
estimates that are corrected later. Invariant: a tenant that was idle is lifted to the least
counter of the backlogged ones, so that idleness never banks credit; two tenants that stay
backlogged differ in served cost a weight by at most 2·U, U the largest cost in flight at once.
"""

from collections.abc import Callable

from mantle.core.ids import TenantId
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap


class VirtualTokenCounter:
    """Implements `Fairness`. `weight_of` is read at each charge, so weights change at run time."""

    def __init__(self, weight_of: Callable[[TenantId], float]) -> None:
        self._weight_of = weight_of
        self._counter: dict[TenantId, float] = {}
        self._waiting: LazyMinHeap[TenantId] = LazyMinHeap(self.counter)
        self._floor = 0.0  # the highest counter that ever drained: a newcomer's start when idle

    def backlogged(self, tenant_id: TenantId) -> None:
        if tenant_id in self._waiting:
            return
        least = self._waiting.least()
        start = self._floor if least is None else self.counter(least)
        self._counter[tenant_id] = max(self.counter(tenant_id), start)
        self._waiting.add(tenant_id)

    def drained(self, tenant_id: TenantId) -> None:
        if tenant_id in self._waiting:
            self._waiting.discard(tenant_id)
            self._floor = max(self._floor, self.counter(tenant_id))

    def pick(self) -> TenantId | None:
        return self._waiting.least()

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        self._counter[tenant_id] = self.counter(tenant_id) + cost / self._weight_of(tenant_id)
        if cost < 0 and tenant_id in self._waiting:
            self._waiting.add(tenant_id)  # it has fallen: seat it anew

    def counter(self, tenant_id: TenantId) -> float:
        """Virtual token cost served to the tenant, divided by its weight."""
        return self._counter.get(tenant_id, 0.0)
