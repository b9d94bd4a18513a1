"""Between lanes: whose turn is it? Strict order, except for what the lower lanes are owed.

Invariant: while a lane with a floor is backlogged it is owed that share of all cost served outside
Reserved; it goes before all but Reserved as soon as it is owed anything, so over a window it gets
its floor to within one request. Debt is bounded by one window and forgotten when the lane has
nothing waiting. What Reserved uses was bought: no floor takes from it, and it makes no debt.
"""

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType

from mantle.core.lane import Lane

DEFAULT_FLOORS: Mapping[Lane, float] = MappingProxyType({Lane.STANDARD: 0.20, Lane.FLEX: 0.05})


class FloorsLaneOrder:
    """Reserved > Priority > Standard > Flex with floors (shares of what is not Reserved, 0…1).

    Raises ValueError when the floors leave nothing for the lanes above.
    """

    def __init__(
        self, floors: Mapping[Lane, float] = DEFAULT_FLOORS, *, window_ms: float = 10_000.0
    ) -> None:
        if any(not 0 <= share < 1 for share in floors.values()) or sum(floors.values()) >= 1:
            raise ValueError("lane floors must be shares below 1 whose sum is below 1")
        self._floors = dict(floors)
        self._floors.pop(Lane.RESERVED, None)
        self._window_ms = window_ms
        self._owed = dict.fromkeys(self._floors, 0.0)
        self._window_cost = 0.0
        self._seen_ms = 0.0

    def pick(self, backlogged: Collection[Lane]) -> Lane | None:
        """The lane to serve next among those with something that could run now."""
        if len(backlogged) <= 1:
            return next(iter(backlogged), None)
        if Lane.RESERVED in backlogged:
            return Lane.RESERVED
        owed = [lane for lane in backlogged if self._owed.get(lane, 0.0) > 0]
        if owed:
            return max(owed, key=lambda lane: (self._owed[lane] / self._floors[lane], -lane.rank))
        return min(backlogged, key=lambda lane: lane.rank)

    def charge(
        self, lane: Lane, cost: float, *, backlogged: Collection[Lane], now_ms: float
    ) -> None:
        """`cost` was given to `lane` (negative: an estimate taken back) while others waited."""
        self._decay(now_ms)
        if lane is Lane.RESERVED:
            return
        self._window_cost = max(0.0, self._window_cost + cost)
        for floor_lane, share in self._floors.items():
            if floor_lane is lane:
                self._owed[floor_lane] -= (1 - share) * cost
            elif floor_lane in backlogged:
                self._owed[floor_lane] += share * cost
            owed = max(-self._window_cost, self._owed[floor_lane])
            self._owed[floor_lane] = min(share * self._window_cost, owed)

    def drained(self, lane: Lane) -> None:
        """Nothing waits in the lane any more: nothing is owed."""
        if lane in self._owed:
            self._owed[lane] = 0.0

    def is_ahead_of_turn(self, lane: Lane, backlogged: Collection[Lane]) -> bool:
        """True when the lane would be served now only because of its floor."""
        return self.owed(lane) > 0 and any(other.rank < lane.rank for other in backlogged)

    def floor(self, lane: Lane) -> float:
        """The share of what is not Reserved that the lane is promised while it is backlogged."""
        return self._floors.get(lane, 0.0)

    def owed(self, lane: Lane) -> float:
        """Token cost that the lane's floor is behind (negative: ahead)."""
        return self._owed.get(lane, 0.0)

    def _decay(self, now_ms: float) -> None:
        elapsed_ms = now_ms - self._seen_ms
        if elapsed_ms > 0:
            self._seen_ms = now_ms
            self._window_cost *= math.exp(-elapsed_ms / self._window_ms)
