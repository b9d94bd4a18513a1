"""Does a tenant get exactly what it bought: not less in the long run, and hardly more in any?"""

import random

import pytest

from mantle.admission.admit import Admission
from mantle.admission.directory import Directory, TenantKeys, hash_api_key
from mantle.admission.port import Ask
from mantle.admission.reservation import ReservedRates
from mantle.core.errors import QueueFull
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.sampling import SamplingParams
from mantle.core.tenant import Quota, Reservation, Tenant
from mantle.core.tokens import Usage
from mantle.pool.port import CatalogueEntry
from mantle.testing.catalogue import ListCatalogue
from mantle.testing.sim_clock import SimClock

M = ModelId("m")
BOUGHT = Reservation(M, 600, 60)  # 10 input and 1 output token a second


def buyer(**fields):
    return Tenant(TenantId("t"), reservations=(BOUGHT,), **fields)


@pytest.fixture
def clock():
    return SimClock()


@pytest.fixture
def rates(clock):
    return ReservedRates(clock)


def take(rates, *, inputs=10, output=10, branches=1, tenant=None):
    return rates.take(
        tenant or buyer(), M, input_tokens=inputs, max_output_tokens=output, branches=branches
    )


def test_without_a_reservation_nothing_is_taken(rates):
    assert take(rates, tenant=Tenant(TenantId("other"))) is None


def test_a_minutes_worth_may_be_taken_at_once_and_no_more(rates):
    assert all(take(rates) for _ in range(6))
    assert take(rates) is None


def test_it_fills_at_the_bought_rate(rates, clock):
    take(rates, output=60)
    clock.advance(9_900)
    assert take(rates, output=10) is None
    clock.advance(200)
    assert take(rates, output=10)


def test_input_and_output_are_bought_apart(rates):
    take(rates, inputs=600, output=1)
    assert take(rates, inputs=1, output=1) is None


def test_what_was_not_used_comes_back_once(rates):
    (hold,) = take(rates, inputs=600, output=60)
    hold.settle(Usage(600, 500, 20))
    assert take(rates, inputs=500, output=40)
    assert take(rates, inputs=1, output=1) is None
    with pytest.raises(AssertionError):
        hold.settle(None)


def test_cached_input_comes_back_with_the_first_token(rates):
    (hold,) = take(rates, inputs=600, output=1)
    hold.progress(Usage(600, 600, 1))
    assert take(rates, inputs=600, output=1)
    hold.settle(Usage(600, 600, 1))
    assert take(rates, inputs=1, output=1) is None, "not given back twice"


def test_request_that_was_never_computed_costs_nothing(rates):
    holds = take(rates, inputs=600, output=20, branches=3)
    for hold in holds:
        hold.settle(None)
    assert take(rates, inputs=600, output=60)


def test_request_larger_than_all_that_was_bought_needs_half_of_it_and_pays_it_off(rates, clock):
    (hold,) = take(rates, inputs=1, output=90)
    assert take(rates, inputs=1, output=1) is None, "one such request at a time"
    hold.settle(Usage(1, 0, 90))
    clock.advance(30_000)  # level 0 again
    assert take(rates, inputs=1, output=1) is None
    clock.advance(29_000)
    assert take(rates, inputs=1, output=90) is None
    clock.advance(2_000)
    assert take(rates, inputs=1, output=90)


def test_more_that_is_bought_counts_from_the_next_request(rates, clock):
    take(rates, output=60)
    more = Tenant(TenantId("t"), reservations=(Reservation(M, 600, 100),))
    assert take(rates, output=40, tenant=more)
    assert take(rates, output=1, tenant=more) is None
    less = Tenant(TenantId("t"), reservations=(Reservation(M, 600, 10),))
    clock.advance(60_000)
    assert take(rates, output=10, tenant=less)
    assert take(rates, output=1, tenant=less) is None


@pytest.mark.parametrize("seed", range(20))
def test_use_stays_below_rate_times_time_plus_a_burst_and_one_request(seed):
    rng, clock = random.Random(seed), SimClock()
    rates, used, open_holds = ReservedRates(clock), 0, []
    for _ in range(400):
        clock.advance(rng.choice((0, 50, 2_000)))
        largest = rng.choice((5, 20, 90))
        holds = take(rates, inputs=rng.choice((0, 5)), output=largest)
        open_holds += [(hold, largest) for hold in holds or []]
        while open_holds and rng.random() < 0.5:
            hold, largest = open_holds.pop(rng.randrange(len(open_holds)))
            output = rng.randint(0, largest)
            used += output
            hold.settle(rng.choice((Usage(0, 0, output), Usage(5, 0, output))))
        assert used <= clock.now_ms() / 1_000 + 60 + 90


def test_steady_demand_at_the_bought_rate_is_never_turned_away(rates, clock):
    running = []
    for _ in range(600):  # 10 tokens every 10 s, each held for 25 s
        clock.advance(10_000)
        running.append(take(rates, inputs=100, output=10))
        if len(running) > 3:
            (hold,) = running.pop(0)
            hold.settle(Usage(100, 0, 10))
    assert all(running)


# --- the road of a request ------------------------------------------------------------------
class KeepingScheduler:
    def __init__(self):
        self.taken, self.full = [], False

    def submit(self, requests):
        if self.full:
            raise QueueFull("full", retry_after_ms=1.0)
        self.taken += requests
        return [Waiting(request) for request in requests]

    def queued_count(self, request_id):
        return 0


class Waiting:
    def __init__(self, request):
        self.request, self.ended = request, None

    def __aiter__(self):
        return self

    def queue_view(self):
        return object()

    def usage_so_far(self):
        return Usage(len(self.request.prompt_tokens))

    def cancel(self):
        pass


class Pool:
    def window_tokens(self, model_id):
        return 1_000


@pytest.fixture
def scheduler():
    return KeepingScheduler()


@pytest.fixture
def enter(scheduler, clock):
    def make(tenant):
        admission = Admission(
            directory=Directory([TenantKeys(tenant, (hash_api_key("k"),))]),
            catalogue=ListCatalogue(CatalogueEntry(M, "scripted", "", "d", 1, 1_000, 0, "m")),
            pool=Pool(),
            scheduler=scheduler,
            clock=clock,
        )
        principal = admission.authenticate("k")

        def one(tier=None, output=30, n=1):
            ask = Ask(M, tuple(range(10)), SamplingParams(), output, n=n, service_tier=tier)
            return admission.enter(principal, ask)

        return one

    return make


def lanes(scheduler):
    return [request.lane for request in scheduler.taken]


@pytest.mark.parametrize("tier", [None, "auto", "scale", "reserved"])
def test_what_was_bought_is_used_and_the_rest_falls_to_standard(enter, scheduler, tier):
    one = enter(buyer())
    for _ in range(3):
        one(tier)
    assert lanes(scheduler) == [Lane.RESERVED, Lane.RESERVED, Lane.STANDARD]


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        ("default", Lane.STANDARD),
        ("standard_only", Lane.STANDARD),
        ("priority", Lane.PRIORITY),
        ("flex", Lane.FLEX),
    ],
)
def test_other_words_leave_it_alone(enter, scheduler, tier, lane):
    one = enter(buyer())
    one(tier)
    one("reserved", output=60)
    assert lanes(scheduler) == [lane, Lane.RESERVED]


def test_all_branches_are_reserved_or_none(enter, scheduler):
    one = enter(buyer())
    one(output=15, n=3)
    one(output=10, n=2)
    assert lanes(scheduler) == [Lane.RESERVED] * 3 + [Lane.STANDARD] * 2


def test_overflow_of_a_tenant_without_standard_goes_where_it_may(enter, scheduler):
    one = enter(buyer(lanes=frozenset({Lane.FLEX})))
    one("reserved", output=60)
    one("reserved", output=60)
    assert lanes(scheduler) == [Lane.RESERVED, Lane.FLEX]


def test_cancelled_and_refused_requests_give_back_what_they_took(enter, scheduler):
    one = enter(buyer())
    (generation,) = one(output=60)
    generation.cancel()
    scheduler.full = True
    with pytest.raises(QueueFull):
        one(output=60)
    scheduler.full = False
    one(output=60)
    assert lanes(scheduler) == [Lane.RESERVED, Lane.RESERVED]


def test_quota_and_reservation_are_settled_together(enter, scheduler):
    one = enter(buyer(quotas=(Quota(M, output_tokens_per_min=60, concurrent_max=1),)))
    (generation,) = one(output=60)
    generation.cancel()
    generation.cancel()
    one(output=60)
    assert lanes(scheduler) == [Lane.RESERVED, Lane.RESERVED]
