"""Does an operator see what is going on? Shares, waits, queues and replicas, as they are."""

import pytest

from mantle.core.lane import Lane
from mantle.scheduler.overview import Overview
from mantle.scheduler.port import ReplicaLine, Waits
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.requests import M, N, a_replica, a_request
from mantle.testing.sim_clock import SimClock


class Shown:
    """A scheduler with one slot and what is shown of it; time is the clock's."""

    def __init__(self, **parts):
        self.clock = SimClock(now_ms=1_000_000.0)
        self.scheduler = Scheduler(**parts)
        self.scheduler.replica_ready(a_replica(slots=1), self.clock.now_ms())
        self.overview = Overview(self.scheduler, self.clock)

    def submit(self, *args, **fields):
        request = a_request(*args, **fields)
        self.scheduler.submit([request], self.clock.now_ms())
        return request

    def finish(self, request, *, after_ms, tokens=10):
        self.clock.advance(after_ms)
        now_ms = self.clock.now_ms()
        self.scheduler.tokens_produced(request.id, count=tokens, cached_tokens=0, now_ms=now_ms)
        return self.scheduler.released(request.id, now_ms)

    def tenant(self, name):
        (found,) = [one for one in self.overview.shares().tenants if one.tenant_id == name]
        return found


def test_shares_are_of_what_was_produced():
    shown = Shown(weight_of=lambda tenant: 3.0 if tenant == "a" else 1.0)
    first = shown.submit("a", prompt_tokens=40)
    second = shown.submit("b", prompt_tokens=0)
    shown.finish(first, after_ms=500.0)
    shown.finish(second, after_ms=500.0)
    report = shown.overview.shares()
    assert report.served_cost == 60.0 + 20.0
    assert report.window_ms == 1_000.0
    a, b = report.tenants
    assert (a.tenant_id, a.weight, a.served_cost) == ("a", 3.0, 60.0)
    assert (a.share_of_lane, a.share_of_all) == (0.75, 0.75)
    assert a.waits == Waits(1, 0.0, 0.0, 0.0)
    assert b.waits.ms_mean == 500.0
    assert b.waits.ms_p99 == pytest.approx(500.0, rel=0.05)
    standard = next(lane for lane in report.lanes if lane.lane is Lane.STANDARD)
    assert standard.jain_index == pytest.approx(1.0)  # 60 for weight 3, 20 for weight 1


def test_running_queued_and_parks_are_counted():
    shown = Shown()
    flex = shown.submit("a", lane=Lane.FLEX)
    shown.clock.advance(1_000.0)
    shown.submit("b", lane=Lane.PRIORITY)
    shown.submit("b", lane=Lane.PRIORITY)
    shown.scheduler.parked(flex.id, shown.clock.now_ms())
    a, b = shown.tenant("a"), shown.tenant("b")
    assert (a.parks, a.running, a.queued) == (1, 0, 1)
    assert (b.parks, b.running, b.queued) == (0, 1, 1)


def test_lane_of_one_tenant_has_no_jain_index():
    shown = Shown()
    shown.finish(shown.submit("a"), after_ms=1.0)
    assert [lane.jain_index for lane in shown.overview.shares().lanes] == [None] * 4


def test_sharing_is_judged_where_two_wait_all_the_time():
    shown = Shown()
    for _ in range(40):
        shown.submit("a")
        shown.submit("b")
    for _ in range(30):
        (running,) = shown.scheduler.residents.all_running()
        shown.finish(running.request, after_ms=1_000.0)
    found = next(s for s in shown.overview.shares().sharing if s.lane is Lane.STANDARD)
    assert found.model_id == M
    assert found.windows_compared == 3
    assert 0.9 < found.jain_index <= 1.0
    assert 0.0 < found.certificate <= found.certificate_highest <= 1.0
    assert shown.overview.certificates()[Lane.STANDARD, M] == found.certificate
    assert shown.overview.certificates_highest()[Lane.STANDARD, M] == found.certificate_highest


def test_queue_line_has_cost_oldest_wait_and_what_a_newcomer_would_wait():
    shown = Shown()
    first = shown.submit("a")
    waiting = [shown.submit("a", prompt_tokens=30, max_output_tokens=5) for _ in range(3)]
    assert shown.overview.queues().queues[0].estimated_wait_ms is None
    shown.finish(first, after_ms=100.0)
    (line,) = shown.overview.queues().queues
    assert (line.lane, line.tenant_id, line.model_id) == (Lane.STANDARD, "a", M)
    assert (line.queued, line.queued_cost) == (2, 2 * (30 + 2 * 5))
    assert line.oldest_wait_ms == 100.0
    last = shown.scheduler.estimated_wait_ms(waiting[-1].id, shown.clock.now_ms())
    assert line.estimated_wait_ms == pytest.approx(last + 100.0)


def test_oldest_wait_is_found_behind_a_deadline():
    shown = Shown()
    shown.submit("a")
    shown.submit("a")
    shown.clock.advance(50.0)
    shown.submit("a", deadline_ms=shown.clock.now_ms() + 10.0)  # goes first
    (line,) = shown.overview.queues().queues
    assert line.oldest_wait_ms == 50.0


def test_queue_that_waits_longest_comes_first_and_replicas_say_what_they_hold():
    shown = Shown()
    shown.submit("late", prompt_tokens=7, max_output_tokens=3)
    shown.submit("old", model=N)
    shown.clock.advance(10.0)
    shown.submit("young")
    report = shown.overview.queues()
    assert [line.tenant_id for line in report.queues] == ["old", "young"]
    assert report.replicas == (ReplicaLine("m#1", M, 1, 1, 100_000, 10, False),)


# --- the oldest wait of a model -----------------------------------------------------------------
def test_oldest_wait_of_a_model_follows_what_comes_back_and_what_leaves():
    shown = Shown()
    queues = shown.scheduler.queues
    assert queues.oldest_wait_ms(N, 1.0) == 0.0
    first = shown.submit(model=N)
    shown.clock.advance(10.0)
    second = shown.submit(model=N)
    now_ms = shown.clock.now_ms()
    assert queues.oldest_wait_ms(N, now_ms) == 10.0
    shown.scheduler.cancel(first.id, now_ms)
    assert queues.oldest_wait_ms(N, now_ms + 5.0) == 5.0
    again = Scheduler()  # where it is queued earlier than what is known as the oldest
    again.submit([second], 100.0)
    assert again.queues.oldest_wait_ms(N, 100.0) == 0.0
    again.submit([first], 40.0)
    assert again.queues.oldest_wait_ms(N, 100.0) == 60.0
