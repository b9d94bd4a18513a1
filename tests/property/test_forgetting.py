"""Does it change anything that idle tenants are forgotten? Two counters, one of which forgets."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mantle.core.ids import TenantId
from mantle.scheduler.fairness.virtual_counter import VirtualTokenCounter

TENANTS = [TenantId(name) for name in "abcdefgh"]
WEIGHTS = {tenant: 2.0 ** (index % 3) for index, tenant in enumerate(TENANTS)}  # exact in binary

ACTIONS = ["ask", "start", "produce", "end", "leave"]
LOADS = [(2, 4, 4, 2, 1), (4, 4, 8, 4, 0), (6, 4, 8, 4, 1)]
"""How often each: from queues that are mostly empty to queues that grow."""


@dataclass
class Running:
    tenant: TenantId
    promised: float


@dataclass
class Lane:
    """What the scheduler tells both counters, in its order of events."""

    both: list[VirtualTokenCounter]
    queued: dict[TenantId, int] = field(default_factory=lambda: dict.fromkeys(TENANTS, 0))
    running: list[Running] = field(default_factory=list)

    def tell(self, name, *args):
        for fairness in self.both:
            getattr(fairness, name)(*args)

    def ask(self, tenant, _size):
        self.queued[tenant] += 1
        if self.queued[tenant] == 1:
            self.tell("backlogged", tenant)

    def leave(self, tenant, _size):
        if self.queued[tenant]:
            self._take(tenant)

    def start(self, _tenant, size):
        tenant = self.both[0].pick()
        if tenant is not None:
            self._take(tenant)
            self.running.append(Running(tenant, float(size)))
            self.tell("charge", tenant, float(size))

    def produce(self, _tenant, size):
        """Part of what was promised, or more than that."""
        if self.running:
            one = self.running[size % len(self.running)]
            cost = float(size % 50)
            if cost > one.promised:
                self.tell("charge", one.tenant, cost - one.promised)
            one.promised = max(0.0, one.promised - cost)
            self.tell("produced", one.tenant, cost)

    def end(self, _tenant, size):
        if self.running:
            one = self.running.pop(size % len(self.running))
            self.tell("charge", one.tenant, -one.promised)
            self.tell("produced", one.tenant, 0.0)
            self.both[1]._sweep_at = 0  # now, not only once many have gathered
            self.both[1].forget_idle(self.is_busy)

    def is_busy(self, tenant):
        return any(one.tenant == tenant for one in self.running)

    def _take(self, tenant):
        self.queued[tenant] -= 1
        if not self.queued[tenant]:
            self.tell("drained", tenant)


@given(st.integers(0, 10**9))
@settings(deadline=None, max_examples=150)
def test_forgetting_changes_no_decision(seed):
    rng = random.Random(seed)
    remembers = VirtualTokenCounter(WEIGHTS.__getitem__, sweep_min=10**9)
    forgets = VirtualTokenCounter(WEIGHTS.__getitem__, sweep_min=0)
    lane = Lane([remembers, forgets])
    for action in rng.choices(ACTIONS, rng.choice(LOADS), k=400):
        getattr(lane, action)(rng.choice(TENANTS), rng.randint(1, 200))
        assert forgets.pick() == remembers.pick()
        for waiting in TENANTS:
            if lane.queued[waiting] or lane.is_busy(waiting):
                assert forgets.counter(waiting) == remembers.counter(waiting)


def test_tenants_without_debt_are_forgotten_and_those_with_debt_are_not():
    fairness = VirtualTokenCounter(lambda _: 1.0, sweep_min=8)
    regular, greedy = TenantId("regular"), TenantId("greedy")

    def serve(tenant, cost):
        fairness.backlogged(tenant)
        fairness.drained(tenant)
        fairness.charge(tenant, cost)
        fairness.produced(tenant, cost)
        fairness.forget_idle(lambda _: False)

    serve(greedy, 10_000.0)
    for number in range(1_000):
        serve(regular, 2.0)
        serve(TenantId(f"once-{number}"), 1.0)
    assert len(fairness) <= 8
    fairness.backlogged(TenantId("newcomer"))
    fairness.backlogged(greedy)
    assert fairness.counter(greedy) == 10_000.0
    assert fairness.pick() == "newcomer"


def test_charge_after_forgetting_is_no_gift():
    fairness = VirtualTokenCounter(lambda _: 1.0, sweep_min=0)
    parked, other = TenantId("parked"), TenantId("other")
    for tenant in (parked, other):
        fairness.backlogged(tenant)
        fairness.drained(tenant)
        fairness.charge(tenant, 100.0)
        fairness.produced(tenant, 100.0)
    fairness.backlogged(other)
    fairness.drained(other)
    fairness.forget_idle(lambda _: False)
    assert len(fairness) == 0
    fairness.charge(parked, 5.0)  # tokens of the step that was under way
    assert fairness.counter(parked) == 105.0
