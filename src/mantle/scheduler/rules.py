"""What does the operator decide about scheduling? Bounds, floors, costs, parking; with defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.scheduler.cost import CostWeights
from mantle.scheduler.lane_order import DEFAULT_FLOORS
from mantle.scheduler.preemption import ParkingRules
from mantle.scheduler.queues import QueueBounds


def default_bounds() -> dict[Lane, QueueBounds]:
    """Longest waits: a minute in Priority, five in Standard, an hour in Flex."""
    return {
        Lane.RESERVED: QueueBounds(wait_s_max=60.0),
        Lane.PRIORITY: QueueBounds(wait_s_max=60.0),
        Lane.STANDARD: QueueBounds(wait_s_max=300.0),
        Lane.FLEX: QueueBounds(wait_s_max=3_600.0),
    }


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """What the operator decides about scheduling."""

    bounds: Mapping[Lane, QueueBounds] = field(default_factory=default_bounds)
    floors: Mapping[Lane, float] = field(default_factory=lambda: dict(DEFAULT_FLOORS))
    cost: CostWeights = field(default_factory=CostWeights)
    parking: ParkingRules = field(default_factory=ParkingRules)


def equal_weights(_: TenantId) -> float:
    """Every tenant weighs the same."""
    return 1.0
