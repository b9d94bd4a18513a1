"""Who was served what lately, and who had to wait? Sums a lane and tenant, in slices of time.

Invariant: memory is bounded whatever happens: only the newest slices are kept, each tells so many
tenants of a lane apart (the rest is `OTHERS`), and a wait is a count in one of few bins.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.core.limits import REPORT_SLICE_MS, REPORT_SLICES, REPORT_TENANTS_MAX

OTHERS: Final = TenantId("*")
"""Tenants beyond what a slice tells apart; no tenant can have this name."""

BIN_GROWTH: Final = 1.1
"""A quantile of waits is exact to half of this step: 5 %."""
_LOG_GROWTH: Final = math.log(BIN_GROWTH)

Key = tuple[Lane, TenantId]


@dataclass(slots=True)
class Tally:
    """What one tenant got in one lane. A wait is from acceptance to the first dispatch."""

    served_cost: float = 0.0
    waits: int = 0
    wait_ms: float = 0.0
    parks: int = 0
    _bins: dict[int, int] = field(default_factory=dict)

    def waited(self, wait_ms: float) -> None:
        self.waits += 1
        self.wait_ms += wait_ms
        place = math.ceil(math.log(wait_ms) / _LOG_GROWTH) if wait_ms > 1.0 else 0
        self._bins[place] = self._bins.get(place, 0) + 1

    def add(self, other: "Tally") -> None:
        self.served_cost += other.served_cost
        self.waits += other.waits
        self.wait_ms += other.wait_ms
        self.parks += other.parks
        for place, count in other._bins.items():
            self._bins[place] = self._bins.get(place, 0) + count

    def wait_ms_at(self, share: float) -> float:
        """The wait that this share of requests did not exceed; 0 of none."""
        left = share * self.waits
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return BIN_GROWTH ** (place - 0.5) if place else 0.0
        return 0.0


class Ledger:
    """The sums of the last `slices` slices, the open one included."""

    def __init__(
        self,
        *,
        slice_ms: float = REPORT_SLICE_MS,
        slices: int = REPORT_SLICES,
        tenants_max: int = REPORT_TENANTS_MAX,
    ) -> None:
        self._slice_ms = slice_ms
        self._slices = slices
        self._tenants_max = tenants_max
        self._kept: dict[int, dict[Key, Tally]] = {}  # by number of the slice, the oldest first
        self._open = -1
        self._tallies: dict[Key, Tally] = {}  # of the open slice
        self._began_ms: float | None = None

    def served(self, lane: Lane, tenant_id: TenantId, cost: float, now_ms: float) -> None:
        """So much was really produced for the tenant."""
        self._tally(lane, tenant_id, now_ms).served_cost += cost

    def waited(self, lane: Lane, tenant_id: TenantId, wait_ms: float, now_ms: float) -> None:
        """A request of the tenant starts after this wait."""
        self._tally(lane, tenant_id, now_ms).waited(wait_ms)

    def parked(self, lane: Lane, tenant_id: TenantId, now_ms: float) -> None:
        """A running attempt of the tenant gives way."""
        self._tally(lane, tenant_id, now_ms).parks += 1

    def since_ms(self, now_ms: float) -> float:
        """The moment from which on `totals` counts."""
        oldest_ms = (int(now_ms // self._slice_ms) - self._slices + 1) * self._slice_ms
        began_ms = now_ms if self._began_ms is None else self._began_ms
        return max(began_ms, oldest_ms)

    def totals(self, now_ms: float) -> dict[Key, Tally]:
        """What each tenant got in each lane since then."""
        self._turn_to(now_ms)
        sums: dict[Key, Tally] = {}
        for tallies in self._kept.values():
            for key, tally in tallies.items():
                total = sums.get(key)
                if total is None:
                    total = sums[key] = Tally()
                total.add(tally)
        return sums

    def __len__(self) -> int:
        """Tallies that are kept."""
        return sum(map(len, self._kept.values()))

    def _tally(self, lane: Lane, tenant_id: TenantId, now_ms: float) -> Tally:
        self._turn_to(now_ms)
        key = (lane, tenant_id)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= self._tenants_max:
                key = (lane, OTHERS)
            tally = self._tallies.setdefault(key, Tally())
        return tally

    def _turn_to(self, now_ms: float) -> None:
        number = int(now_ms // self._slice_ms)
        if number <= self._open:
            return
        if self._began_ms is None:
            self._began_ms = now_ms
        self._open = number
        self._tallies = self._kept[number] = {}
        while (oldest := next(iter(self._kept))) <= number - self._slices:
            del self._kept[oldest]
