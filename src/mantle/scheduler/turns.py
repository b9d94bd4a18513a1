"""Whose turn is it on one model? Lanes and their floors, tenants within a lane, and the proof.

A slot of a model is of use only to requests for that model, so each model has accounts of its own.
Invariant: what a lane or tenant got of one model neither delays it nor helps it on another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.scheduler.certificate import Certificate
from mantle.scheduler.fairness.port import Fairness
from mantle.scheduler.lane_order import FloorsLaneOrder
from mantle.scheduler.lane_service import LaneService


@dataclass(frozen=True, slots=True)
class Turns:
    """The accounts of one model."""

    lane_order: FloorsLaneOrder
    fairness: Mapping[Lane, Fairness]
    certificates: Mapping[Lane, Certificate]
    service: LaneService

    @classmethod
    def fresh(
        cls, floors: Mapping[Lane, float], fairness_of: Callable[[Lane], Fairness]
    ) -> "Turns":
        return cls(
            FloorsLaneOrder(floors),
            {lane: fairness_of(lane) for lane in Lane},
            {lane: Certificate() for lane in Lane},
            LaneService(),
        )

    def is_behind_floor(self, lane: Lane, now_ms: float) -> bool:
        """True when the lane really gets less than its floor just now."""
        share = self.service.share(lane, now_ms)
        return share is not None and share < self.lane_order.floor(lane)

    def backlogged(self, lane: Lane, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has something waiting in this lane now."""
        self.fairness[lane].backlogged(tenant_id)
        self.certificates[lane].waits(tenant_id, now_ms)

    def drained(self, lane: Lane, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has nothing waiting in this lane any more."""
        self.fairness[lane].drained(tenant_id)
        self.certificates[lane].rests(tenant_id, now_ms)
