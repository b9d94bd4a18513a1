"""Does each lane get its floor, and no more than it is due?"""

import pytest

from mantle.core.lane import Lane
from mantle.scheduler.lane_order import FloorsLaneOrder


def serve(order, backlogged, rounds, cost=100.0, step_ms=10.0):
    served = dict.fromkeys(Lane, 0.0)
    for turn in range(rounds):
        now_ms = turn * step_ms
        lane = order.pick(backlogged)
        served[lane] += cost
        order.charge(lane, cost, backlogged=backlogged, now_ms=now_ms)
    return served


def test_strict_order_without_debt():
    order = FloorsLaneOrder()
    assert order.pick([Lane.FLEX, Lane.PRIORITY, Lane.STANDARD]) is Lane.PRIORITY


def test_floors_hold_while_all_lanes_are_backlogged():
    served = serve(FloorsLaneOrder(), [Lane.PRIORITY, Lane.STANDARD, Lane.FLEX], 1_000)
    total = sum(served.values())
    assert served[Lane.STANDARD] / total == pytest.approx(0.20, abs=0.01)
    assert served[Lane.FLEX] / total == pytest.approx(0.05, abs=0.01)
    assert served[Lane.PRIORITY] / total == pytest.approx(0.75, abs=0.01)


def test_lone_lane_gets_everything():
    served = serve(FloorsLaneOrder(), [Lane.FLEX], 100)
    assert served[Lane.FLEX] == 100 * 100.0


def test_nothing_is_owed_to_a_lane_that_was_empty():
    order = FloorsLaneOrder()
    serve(order, [Lane.PRIORITY], 500)
    assert order.owed(Lane.STANDARD) == 0.0
    assert order.pick([Lane.PRIORITY, Lane.STANDARD]) is Lane.PRIORITY


def test_debt_is_forgotten_when_the_lane_drains():
    order = FloorsLaneOrder()
    order.charge(Lane.PRIORITY, 1_000.0, backlogged=[Lane.FLEX], now_ms=0.0)
    assert order.owed(Lane.FLEX) > 0
    order.drained(Lane.FLEX)
    assert order.pick([Lane.PRIORITY, Lane.FLEX]) is Lane.PRIORITY


@pytest.mark.parametrize("floors", [{Lane.STANDARD: 0.6, Lane.FLEX: 0.4}, {Lane.FLEX: -0.1}])
def test_impossible_floors_are_refused(floors):
    with pytest.raises(ValueError, match="floors"):
        FloorsLaneOrder(floors)
