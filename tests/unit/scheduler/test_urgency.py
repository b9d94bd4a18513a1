"""Who may interrupt the engine's step in progress?"""

from mantle.core.lane import Lane
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import a_replica, a_request


def ready(**replica):
    scheduler = Scheduler()
    scheduler.replica_ready(a_replica(**replica), 0.0)
    return scheduler


def urgency(scheduler, request):
    (dispatch,) = scheduler.submit([request], 1_000.0)
    return dispatch.urgent


def test_request_is_urgent_beside_a_lower_lane():
    scheduler = ready(slots=8)
    scheduler.submit([a_request("a", lane=Lane.FLEX)], 0.0)
    assert urgency(scheduler, a_request("b", lane=Lane.STANDARD))
    assert urgency(scheduler, a_request("c", lane=Lane.PRIORITY))


def test_first_request_of_a_quiet_tenant_is_urgent_beside_a_burst_and_its_next_is_not():
    scheduler = ready(slots=8)
    for _ in range(3):
        scheduler.submit([a_request("noisy")], 0.0)
    assert urgency(scheduler, a_request("quiet"))
    assert not urgency(scheduler, a_request("quiet"))  # two of five are its fair part
    assert not urgency(scheduler, a_request("noisy"))


def test_nothing_is_urgent_among_equals():
    scheduler = ready(slots=8)
    scheduler.submit([a_request("a")], 0.0)
    assert not urgency(scheduler, a_request("b"))
    assert not urgency(scheduler, a_request("c", lane=Lane.FLEX))
