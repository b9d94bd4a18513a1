"""How many slots does a tenant usually need? Learned from its own arrivals, nothing to configure.

Little's law: slots in use = arrivals a second × seconds of service. Both are exponentially decayed
means, so a change of habit is learned within a few half-lives and a burst hardly counts at first.
"""

import math
from dataclasses import dataclass

from mantle.core.ids import ModelId, TenantId

HALF_LIFE_MS = 60_000.0
FORGET_MS = 20 * HALF_LIFE_MS
"""A habit of which nothing was seen for so long is none: a millionth of it is left."""

WARM_ARRIVALS = 5
"""Arrivals before a tenant counts as steady: one request is no habit."""


@dataclass(slots=True)
class _Habit:
    arrivals: float = 0.0  # decayed count
    seen: int = 0
    at_ms: float = 0.0
    arrived_ms: float = 0.0
    service_ms: float = 0.0  # EWMA

    def decay_to(self, now_ms: float) -> None:
        elapsed_ms = max(0.0, now_ms - self.at_ms)
        self.arrivals *= math.exp2(-elapsed_ms / HALF_LIFE_MS)
        self.at_ms = max(self.at_ms, now_ms)


class SteadyTraffic:
    """Each tenant's steady concurrency on each model, of those seen lately."""

    def __init__(self) -> None:
        self._habits: dict[tuple[TenantId, ModelId], _Habit] = {}  # the last seen last

    def arrived(self, tenant_id: TenantId, model_id: ModelId, now_ms: float) -> None:
        habit = self._habits.pop((tenant_id, model_id), None) or _Habit(at_ms=now_ms)
        self._habits[tenant_id, model_id] = habit
        habit.decay_to(now_ms)
        habit.arrived_ms = now_ms
        habit.arrivals += 1
        habit.seen += 1
        while now_ms - self._habits[oldest := next(iter(self._habits))].arrived_ms > FORGET_MS:
            del self._habits[oldest]

    def served(
        self, tenant_id: TenantId, model_id: ModelId, service_ms: float, now_ms: float
    ) -> None:
        """An attempt held its slot for so long."""
        habit = self._habits.get((tenant_id, model_id))
        if habit is None:
            return  # it came so long ago that its habit is forgotten
        first = habit.service_ms == 0.0
        habit.service_ms += (1.0 if first else 0.2) * (service_ms - habit.service_ms)

    def __len__(self) -> int:
        """Habits that are remembered."""
        return len(self._habits)

    def slots(self, tenant_id: TenantId, model_id: ModelId, now_ms: float) -> float:
        """Slots this tenant's steady traffic needs; 0 while it has no habit."""
        habit = self._habits.get((tenant_id, model_id))
        if habit is None or habit.seen < WARM_ARRIVALS:
            return 0.0
        habit.decay_to(now_ms)
        arrivals_a_ms = habit.arrivals * math.log(2) / HALF_LIFE_MS
        return arrivals_a_ms * habit.service_ms
