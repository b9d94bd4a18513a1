"""Who gives way? Chooses the running attempt to park for a request that should not wait.

The cases, in order (design §5):
1. Across lanes: an attempt of a lower lane gives way to a higher lane's request, the lowest lane
   first, but never one of a lane that is behind its floor. To Reserved, whose use was bought, all
   lanes give way, whatever their floors.
2. Within a lane: the tenant with most slots gives way to one that would still hold no more than
   it after the exchange (for their weights).
In each case the heaviest tenant's newest attempt is parked. Hysteresis: an attempt runs at least
`run_ms_min` before it is parked, and that much longer after each park, so parks go round among a
tenant's attempts; a tenant below its steady traffic (`steady.py`) does not wait for that.
Invariant: a victim never outranks the request it gives way to, so parking can not go in circles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.scheduler.holdings import Holdings, LaneHoldings
from mantle.scheduler.running import Running

LOWER_LANES: Final = {
    lane: tuple(other for other in reversed(Lane) if other.rank > lane.rank) for lane in Lane
}
"""The lanes below each lane, the lowest first."""


@dataclass(frozen=True, slots=True)
class ParkingRules:
    """When a running attempt may be parked."""

    enabled: bool = True
    run_ms_min: float = 250.0


@dataclass(frozen=True, slots=True)
class Parking:
    """Pure choice over `Holdings`; `is_behind_floor` is asked for a lane of a model, now."""

    rules: ParkingRules
    holdings: Holdings
    weight_of: Callable[[TenantId], float]
    is_behind_floor: Callable[[ModelId, Lane, float], bool]

    def victim_for(self, request: Request, *, is_steady: bool, now_ms: float) -> Running | None:
        """The attempt to park so that `request` can run; None: it has to wait."""
        if not self.rules.enabled:
            return None
        for lane in LOWER_LANES[request.lane]:
            lower = self.holdings.of(request.model_id, lane)
            if lower is not None and self._may_take(request, lane, now_ms):
                victim = next(self._across_lanes(request, lower, now_ms), None)
                if victim is not None:
                    return victim
        return next(self._within_lane(request, is_steady, now_ms), None)

    def is_urgent(self, request: Request) -> bool:
        """True when the request should not even wait for the step in progress.

        That is when a lower lane holds slots of this model, or another tenant of its own lane
        holds at least twice what the request's tenant would hold with it (for their weights).
        """
        if not self.rules.enabled:
            return False
        model_id, lane = request.model_id, request.lane
        if any(self.holdings.of(model_id, lower) for lower in LOWER_LANES[lane]):
            return True
        here = self.holdings.of(model_id, lane)
        if here is None:
            return False
        heaviest = here.heaviest()
        mine = (here.count(request.tenant_id) + 1) / self.weight_of(request.tenant_id)
        return heaviest != request.tenant_id and (
            here.count(heaviest) / self.weight_of(heaviest) >= 2 * mine
        )

    def _may_take(self, request: Request, lane: Lane, now_ms: float) -> bool:
        if request.lane is Lane.RESERVED:
            return True
        return not self.is_behind_floor(request.model_id, lane, now_ms)

    def _across_lanes(
        self, request: Request, lower: LaneHoldings, now_ms: float
    ) -> Iterator[Running]:
        ends_floors = request.lane is Lane.RESERVED
        for tenant_id in lower.heaviest_first():
            for running in lower.newest_first(tenant_id):
                may_be_parked = running.can_be_parked if ends_floors else running.may_be_parked
                if may_be_parked and running.started_ms < now_ms:
                    yield running

    def _within_lane(self, request: Request, is_steady: bool, now_ms: float) -> Iterator[Running]:
        here = self.holdings.of(request.model_id, request.lane)
        if here is None:
            return
        heaviest = here.heaviest()
        if heaviest == request.tenant_id:
            return
        mine = (here.count(request.tenant_id) + 1) / self.weight_of(request.tenant_id)
        theirs = (here.count(heaviest) - 1) / self.weight_of(heaviest)
        if mine > theirs:
            return
        for rests in (True, False) if is_steady else (True,):
            for running in here.newest_first(heaviest):
                run_ms_min = self.rules.run_ms_min * (1 + running.waiting.parks) if rests else 0.0
                if running.may_be_parked and now_ms - running.started_ms > run_ms_min:
                    yield running
