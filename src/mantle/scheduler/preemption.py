"""Who gives way? Chooses the running attempt to park for a request that should not wait.

The cases, in order (design §5):
1. Across lanes: an attempt of a lower lane gives way to a higher lane's request, the lowest lane
   first, but never one of a lane that is behind its floor.
2. Within a lane: the tenant with most slots gives way to one that would still hold no more than
   it after the exchange (for their weights).
In each case the heaviest tenant's newest attempt is parked. Hysteresis: an attempt runs at least
`run_ms_min` between two parks, and after `parks_max` parks it is left alone; a tenant below its
steady traffic (`steady.py`) does not wait for the first of these. Invariant: a chosen victim never
outranks the request it gives way to, so parking can not go in circles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.scheduler.holdings import Holdings
from mantle.scheduler.running import Running


@dataclass(frozen=True, slots=True)
class ParkingRules:
    """When a running attempt may be parked. `parks_max` counts parks within its own lane."""

    enabled: bool = True
    run_ms_min: float = 250.0
    parks_max: int = 4


@dataclass(frozen=True, slots=True)
class Parking:
    """Pure choice over `Holdings`; `is_owed` says whether a lane is behind its floor there."""

    rules: ParkingRules
    holdings: Holdings
    weight_of: Callable[[TenantId], float]
    is_owed: Callable[[ModelId, Lane], bool]

    def victim_for(self, request: Request, *, is_steady: bool, now_ms: float) -> Running | None:
        """The attempt to park so that `request` can run; None: it has to wait."""
        if not self.rules.enabled:
            return None
        across = next(self._across_lanes(request, now_ms), None)
        return across or next(self._within_lane(request, is_steady, now_ms), None)

    def is_urgent(self, request: Request) -> bool:
        """True when the request should not even wait for the step in progress.

        That is when a lower lane holds slots of this model, or another tenant of its own lane
        holds two or more while the request's tenant holds none.
        """
        if not self.rules.enabled:
            return False
        model_id, lane = request.model_id, request.lane
        if any(self.holdings.heaviest(model_id, o) for o in Lane if o.rank > lane.rank):
            return True
        heaviest = self.holdings.heaviest(model_id, lane)
        if heaviest is None or self.holdings.count(model_id, lane, request.tenant_id):
            return False
        return self.holdings.count(model_id, lane, heaviest) > 1

    def _across_lanes(self, request: Request, now_ms: float) -> Iterator[Running]:
        for lane in reversed(Lane):
            if lane.rank <= request.lane.rank:
                return
            if self.is_owed(request.model_id, lane):
                continue
            for tenant_id in self.holdings.tenants(request.model_id, lane):
                for running in self.holdings.newest_first(request.model_id, lane, tenant_id):
                    if running.may_be_parked and running.started_ms < now_ms:
                        yield running

    def _within_lane(self, request: Request, is_steady: bool, now_ms: float) -> Iterator[Running]:
        model_id, lane = request.model_id, request.lane
        heaviest = self.holdings.heaviest(model_id, lane)
        if heaviest is None or heaviest == request.tenant_id:
            return
        mine = self.holdings.count(model_id, lane, request.tenant_id) + 1
        theirs = self.holdings.count(model_id, lane, heaviest) - 1
        if mine / self.weight_of(request.tenant_id) > theirs / self.weight_of(heaviest):
            return
        ran_ms = 0.0 if is_steady else self.rules.run_ms_min
        for running in self.holdings.newest_first(model_id, lane, heaviest):
            rested = now_ms - running.started_ms > ran_ms
            if running.may_be_parked and rested and running.waiting.parks < self.rules.parks_max:
                yield running
