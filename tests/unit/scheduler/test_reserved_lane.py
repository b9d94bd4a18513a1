"""Does bought capacity come before everything, and do floors share only the rest?"""

import pytest

from mantle.core.errors import QueueFull
from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound
from mantle.scheduler.effects import Dispatch, Park
from mantle.scheduler.lane_order import FloorsLaneOrder
from mantle.scheduler.lane_service import LaneService
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import a_replica, a_request
from tests.unit.scheduler.runs import ready

ALL = list(Lane)


def test_reserved_goes_before_a_lane_that_is_behind_its_floor():
    order = FloorsLaneOrder()
    order.charge(Lane.PRIORITY, 1_000.0, backlogged=ALL, now_ms=0.0)
    assert order.owed(Lane.STANDARD) > 0
    assert order.pick(ALL) is Lane.RESERVED
    assert order.pick([Lane.PRIORITY, Lane.STANDARD]) is Lane.STANDARD


def test_what_reserved_uses_makes_no_debt():
    order = FloorsLaneOrder()
    order.charge(Lane.RESERVED, 1e6, backlogged=ALL, now_ms=0.0)
    assert order.owed(Lane.STANDARD) == order.owed(Lane.FLEX) == 0.0


def test_floors_are_shares_of_what_is_not_reserved():
    order = FloorsLaneOrder()
    served = dict.fromkeys(Lane, 0.0)
    for turn in range(2_000):
        shared = [Lane.PRIORITY, Lane.STANDARD, Lane.FLEX]
        backlogged = ALL if turn % 2 else shared  # Reserved has work for half of the turns
        lane = order.pick(backlogged)
        served[lane] += 100.0
        order.charge(lane, 100.0, backlogged=backlogged, now_ms=turn * 10.0)
    rest = sum(cost for lane, cost in served.items() if lane is not Lane.RESERVED)
    assert served[Lane.RESERVED] == 100_000.0
    assert served[Lane.STANDARD] / rest == pytest.approx(0.20, abs=0.01)
    assert served[Lane.FLEX] / rest == pytest.approx(0.05, abs=0.01)


def test_floor_of_reserved_is_ignored():
    order = FloorsLaneOrder({Lane.RESERVED: 0.5, Lane.FLEX: 0.1})
    assert order.floor(Lane.RESERVED) == 0.0


def test_measured_share_leaves_reserved_out():
    service = LaneService()
    service.served(Lane.RESERVED, 900.0, 0.0)
    assert service.share(Lane.FLEX, 0.0) is None
    service.served(Lane.FLEX, 100.0, 0.0)
    assert service.share(Lane.FLEX, 0.0) == 1.0


@pytest.mark.parametrize("lane", [Lane.PRIORITY, Lane.STANDARD, Lane.FLEX])
def test_lent_slot_comes_back_with_one_park(lane):
    scheduler = ready(slots=2)
    lent = [a_request("a", lane=lane, max_output_tokens=100) for _ in range(2)]
    scheduler.submit(lent, 0.0)
    mine = a_request("buyer", lane=Lane.RESERVED)
    park, dispatch = scheduler.submit([mine], 10.0)
    assert isinstance(park, Park)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.request_id == mine.id
    assert dispatch.urgent


def test_even_a_slot_that_a_floor_gave_comes_back():
    scheduler = ready(slots=1)
    first = a_request("a", lane=Lane.PRIORITY, max_output_tokens=500)
    scheduler.submit([first], 0.0)
    waiting = [a_request("b", lane=lane) for lane in (Lane.PRIORITY, Lane.FLEX)]
    for request in waiting:
        scheduler.submit([request], 1.0)
    scheduler.tokens_produced(first.id, count=500, cached_tokens=0, now_ms=2.0)
    (by_floor,) = scheduler.released(first.id, 3.0)
    assert by_floor.request_id == waiting[1].id, "flex goes first only by its floor"
    assert scheduler.submit([a_request("c", lane=Lane.PRIORITY)], 4.0) == []
    park, dispatch = scheduler.submit([a_request("buyer", lane=Lane.RESERVED)], 5.0)
    assert (park.request_id, type(dispatch)) == (waiting[1].id, Dispatch)


def test_reserved_gives_way_to_nobody():
    scheduler = ready(slots=1)
    scheduler.submit([a_request("buyer", lane=Lane.RESERVED)], 0.0)
    for lane in (Lane.PRIORITY, Lane.STANDARD, Lane.FLEX):
        assert scheduler.submit([a_request("a", lane=lane)], 10_000.0) == []


# --- bounds of a tenant's own --------------------------------------------------------------------
def test_own_queue_bound_holds_for_its_tenant_and_lane_and_changes_at_once():
    bounds = {("small", Lane.FLEX): QueueBound(Lane.FLEX, requests_max=1)}
    scheduler = Scheduler(bound_of=lambda tenant_id, lane: bounds.get((tenant_id, lane)))
    scheduler.replica_ready(a_replica(slots=1), 0.0)
    scheduler.submit([a_request("x", lane=Lane.RESERVED)], 0.0)
    small = TenantId("small")
    scheduler.submit([a_request(small, lane=Lane.FLEX)], 0.0)
    with pytest.raises(QueueFull, match="1 requests wait there, 1 may"):
        scheduler.submit([a_request(small, lane=Lane.FLEX)], 0.0)
    scheduler.submit([a_request(small, lane=Lane.STANDARD)], 0.0)
    scheduler.submit([a_request("other", lane=Lane.FLEX)], 0.0)
    scheduler.submit([a_request("other", lane=Lane.FLEX)], 0.0)
    bounds["small", Lane.FLEX] = QueueBound(Lane.FLEX, tokens_max=50)
    scheduler.submit([a_request(small, lane=Lane.FLEX)], 0.0)
    with pytest.raises(QueueFull, match="40 tokens wait there, 50 may"):
        scheduler.submit([a_request(small, lane=Lane.FLEX)], 0.0)
