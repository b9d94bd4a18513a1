"""How good is the guess of how long a request will wait, and what does it remember?"""

import pytest

from mantle.core.errors import QueueFull
from mantle.core.lane import Lane
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules
from mantle.scheduler.scheduler import Scheduler
from mantle.scheduler.wait_estimate import WaitEstimate
from mantle.testing.requests import N, a_replica, a_request


def served_every(gap_ms, tenant="t", *, count=20, **estimate):
    """A queue of which one request starts every `gap_ms`, the last one at `count * gap_ms`."""
    waits = WaitEstimate(**estimate)
    for number in range(1, count + 1):
        waits.dispatched(a_request(tenant), queued_ms=0.0, now_ms=number * gap_ms)
    return waits


def wait_ms(waits, request, position, *, queued_ms=2_000.0, now_ms=2_000.0):
    return waits.wait_ms(request, position, queued_ms=queued_ms, now_ms=now_ms)


def test_nothing_is_guessed_before_anything_was_served():
    assert wait_ms(WaitEstimate(), a_request(), 3) is None


def test_wait_is_the_pace_times_the_place_in_line():
    waits = served_every(100.0)
    assert wait_ms(waits, a_request(), 0) == pytest.approx(100.0)
    assert wait_ms(waits, a_request(), 3) == pytest.approx(400.0)


def test_time_since_the_last_start_counts():
    waits = served_every(100.0)
    assert wait_ms(waits, a_request(), 1, now_ms=2_060.0) == pytest.approx(140.0)


def test_overdue_start_is_expected_as_much_later_again():
    waits = served_every(100.0)
    assert wait_ms(waits, a_request(), 1, now_ms=2_300.0) == pytest.approx(200.0 + 300.0)


def test_idle_time_is_no_pace():
    waits = served_every(100.0)
    late = a_request()
    waits.dispatched(late, queued_ms=60_000.0, now_ms=60_100.0)
    waited = wait_ms(waits, a_request(), 0, queued_ms=60_100.0, now_ms=60_100.0)
    assert waited == pytest.approx(100.0)


def test_request_that_starts_at_once_does_not_change_the_pace():
    waits = served_every(100.0)
    waits.dispatched(a_request(), queued_ms=2_000.0, now_ms=2_000.0)
    assert wait_ms(waits, a_request(), 0) == pytest.approx(100.0)


def test_unknown_tenant_gets_the_pace_of_lane_and_model_then_of_the_platform():
    waits = WaitEstimate()
    waits.dispatched(a_request("a"), queued_ms=0.0, now_ms=100.0)
    waits.dispatched(a_request("a", lane=Lane.FLEX), queued_ms=0.0, now_ms=900.0)
    assert wait_ms(waits, a_request("b"), 0) == pytest.approx(100.0)
    everywhere = 100.0 + 0.2 * (900.0 - 100.0)
    assert wait_ms(waits, a_request("b", model=N), 0) == pytest.approx(everywhere)


def test_first_estimate_is_compared_with_the_real_wait():
    over = []
    waits = served_every(100.0, on_over=lambda *seen: over.append(seen))
    request = a_request()
    waits.queued(request, 2_000.0)
    waits.dispatched(request, queued_ms=2_000.0, now_ms=2_130.0)
    assert over == [(request.lane, request.model_id, pytest.approx(100.0), 130.0)]


def test_tenants_unseen_for_long_and_requests_that_left_are_forgotten():
    waits = WaitEstimate(forget_ms=1_000.0)
    for number in range(500):
        waits.dispatched(a_request(f"t{number}"), queued_ms=0.0, now_ms=10.0)
    gone = a_request()
    waits.queued(gone, 10.0)
    waits.left(gone)
    waits.dispatched(a_request("last"), queued_ms=5_000.0, now_ms=5_010.0)
    assert len(waits) == 3  # its own pace, its lane and model, the platform


# --- in the scheduler ---------------------------------------------------------------------------
def a_backlog(count, **parts):
    scheduler = Scheduler(**parts)
    scheduler.replica_ready(a_replica(slots=1), 0.0)
    requests = [a_request() for _ in range(count)]
    for request in requests:
        scheduler.submit([request], 0.0)
    return scheduler, requests


def test_scheduler_estimates_by_position_and_only_what_waits():
    scheduler, requests = a_backlog(6)
    assert scheduler.estimated_wait_ms(requests[5].id, 0.0) is None
    scheduler.released(requests[0].id, 100.0)
    scheduler.released(requests[1].id, 200.0)
    assert scheduler.estimated_wait_ms(requests[3].id, 200.0) == pytest.approx(100.0)
    assert scheduler.estimated_wait_ms(requests[5].id, 200.0) == pytest.approx(300.0)
    assert scheduler.estimated_wait_ms(requests[0].id, 200.0) is None


def test_scheduler_says_what_it_estimated_first_and_how_long_it_was():
    over = []
    scheduler, requests = a_backlog(3, on_wait_over=lambda *seen: over.append(seen))
    scheduler.released(requests[0].id, 100.0)
    assert over == []  # nothing was known when the first ones came
    late = a_request()
    scheduler.submit([late], 100.0)
    scheduler.released(requests[1].id, 200.0)
    scheduler.released(requests[2].id, 350.0)
    assert over == [(late.lane, late.model_id, pytest.approx(200.0), 250.0)]


def test_full_queue_says_when_to_come_back_by_the_measured_pace():
    bounds = {lane: QueueBounds(requests_max=2) for lane in Lane}
    scheduler = Scheduler(SchedulerRules(bounds=bounds))
    scheduler.replica_ready(a_replica(slots=1), 0.0)
    first, *_ = [a_request() for _ in range(3)]
    scheduler.submit([first], 0.0)
    waiting = a_request()
    scheduler.submit([waiting], 0.0)
    scheduler.released(first.id, 4_000.0)
    scheduler.submit([a_request()], 4_000.0)
    scheduler.submit([a_request()], 4_000.0)
    with pytest.raises(QueueFull) as full:
        scheduler.submit([a_request()], 4_000.0)
    assert full.value.retry_after_ms == pytest.approx(4_000.0)
