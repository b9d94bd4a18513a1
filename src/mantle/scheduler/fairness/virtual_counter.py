"""Who has had the least, for its weight? Weighted virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with weights and with
estimates that are corrected later. Invariant: a tenant that was idle is lifted to what the least
served of the backlogged ones has really had (its counter without what is still only promised), so
that idleness never banks credit and nobody waits for tokens that others may get later; two tenants
that stay backlogged differ in served cost a weight by at most 2·U, U the largest cost in flight.

Memory: an idle tenant is forgotten once its counter is not above what it would be lifted to anyhow.
A tenant comes back at what some tenant then backlogged has had, or at the floor. What a tenant has
had never falls, so from now on that is never less than the least of the floor and of what the
backlogged and the promised have had.
"""

from collections.abc import Callable
from typing import Final

from mantle.core.ids import TenantId
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap

SWEEP_MIN: Final = 256
"""Counters below which it is not worth looking for some to forget."""

_ROUNDING: Final = 1e-6
"""Token cost below which a promise is taken for kept."""


class VirtualTokenCounter:
    """Implements `Fairness`. `weight_of` is read at each charge, so weights change at run time."""

    def __init__(
        self, weight_of: Callable[[TenantId], float], *, sweep_min: int = SWEEP_MIN
    ) -> None:
        self._sweep_min = self._sweep_at = sweep_min
        self._weight_of = weight_of
        self._counter: dict[TenantId, float] = {}
        self._promised: dict[TenantId, float] = {}  # charged, not yet produced
        self._waiting: LazyMinHeap[TenantId] = LazyMinHeap(self.counter)
        self._forgotten = 0.0  # no forgotten tenant's counter was above it
        self._floor = 0.0  # the most that a tenant had had when it drained: a newcomer's start

    def backlogged(self, tenant_id: TenantId) -> None:
        if tenant_id in self._waiting:
            return
        least = self._waiting.least()
        start = self._floor if least is None else self._had(least)
        self._counter[tenant_id] = max(self.counter(tenant_id), start)
        self._waiting.add(tenant_id)

    def drained(self, tenant_id: TenantId) -> None:
        if tenant_id in self._waiting:
            self._waiting.discard(tenant_id)
            self._floor = max(self._floor, self._had(tenant_id))

    def pick(self) -> TenantId | None:
        return self._waiting.least()

    def charge(self, tenant_id: TenantId, cost: float) -> None:
        weighted = cost / self._weight_of(tenant_id)
        self._counter[tenant_id] = self._counter.get(tenant_id, self._forgotten) + weighted
        self._promised[tenant_id] = self._promised.get(tenant_id, 0.0) + weighted
        if cost < 0 and tenant_id in self._waiting:
            self._waiting.add(tenant_id)  # it has fallen: seat it anew

    def produced(self, tenant_id: TenantId, cost: float) -> None:
        left = self._promised.get(tenant_id, 0.0) - cost / self._weight_of(tenant_id)
        if left > _ROUNDING:
            self._promised[tenant_id] = left
        else:
            self._promised.pop(tenant_id, None)

    def forget_idle(self, is_busy: Callable[[TenantId], bool]) -> None:
        if len(self._counter) < self._sweep_at:
            return
        live = [tenant_id for tenant_id in self._counter if self._is_live(tenant_id)]
        start = min(self._floor, min(map(self._had, live), default=self._floor))
        kept = {
            tenant_id: counter
            for tenant_id, counter in self._counter.items()
            if counter > start or self._is_live(tenant_id) or is_busy(tenant_id)
        }
        self._counter, self._forgotten = kept, start
        self._sweep_at = max(self._sweep_min, 2 * len(kept))

    def _is_live(self, tenant_id: TenantId) -> bool:
        return tenant_id in self._waiting or tenant_id in self._promised

    def __len__(self) -> int:
        """Tenants that are remembered."""
        return len(self._counter)

    def _had(self, tenant_id: TenantId) -> float:
        return self.counter(tenant_id) - self._promised.get(tenant_id, 0.0)

    def counter(self, tenant_id: TenantId) -> float:
        """Virtual token cost served to the tenant, divided by its weight."""
        return self._counter.get(tenant_id, 0.0)
