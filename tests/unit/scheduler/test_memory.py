"""Does the scheduler's memory stay small, however many tenants came and went?"""

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.scheduler.cost import OutputEstimate
from mantle.scheduler.fairness.virtual_counter import SWEEP_MIN
from mantle.scheduler.scheduler import Scheduler
from mantle.scheduler.steady import FORGET_MS, WARM_ARRIVALS, SteadyTraffic
from mantle.testing.requests import M, a_replica, a_request


def test_tenants_that_came_once_are_forgotten_by_the_counters():
    scheduler = Scheduler()
    scheduler.replica_ready(a_replica(slots=1), 0.0)
    for number in range(5_000):
        now_ms = float(number)
        one = a_request(f"once-{number}", prompt_tokens=1)
        regular = a_request("regular", prompt_tokens=100)
        for request in (one, regular):
            scheduler.submit([request], now_ms)
        for request in (one, regular):
            scheduler.tokens_produced(request.id, count=1, cached_tokens=0, now_ms=now_ms)
            scheduler.released(request.id, now_ms)
    fairness = scheduler.accounts.turns_of(M).fairness[Lane.STANDARD]
    assert len(fairness) <= SWEEP_MIN


def test_habit_of_long_ago_is_forgotten_and_that_of_others_is_not():
    steady = SteadyTraffic()
    for number in range(1_000):
        steady.arrived(TenantId(f"t{number}"), M, 0.0)
    regular, now_ms = TenantId("regular"), 0.0
    while now_ms <= FORGET_MS:
        now_ms += 1_000.0
        steady.arrived(regular, M, now_ms)
        steady.served(regular, M, 2_000.0, now_ms)
    assert len(steady) == 1
    assert 1.5 < steady.slots(regular, M, now_ms) < 2.5  # one a second, two seconds each


def test_service_of_a_forgotten_habit_makes_no_new_one():
    steady = SteadyTraffic()
    for _ in range(WARM_ARRIVALS):
        steady.arrived(TenantId("long"), M, 0.0)
    steady.arrived(TenantId("other"), M, FORGET_MS + 1.0)
    steady.served(TenantId("long"), M, FORGET_MS, FORGET_MS + 2.0)
    assert len(steady) == 1


def test_output_is_remembered_of_those_served_last():
    estimate = OutputEstimate(tenants_max=2)
    for tenant in ("a", "b", "a", "c"):
        estimate.learn(tenant, 7)
    assert [estimate.expected(tenant, 1_000) for tenant in ("a", "b", "c")] == [7, 128, 7]
