"""Bounds of the fairness port, for any tenants, weights and sizes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mantle.core.ids import TenantId
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap
from mantle.scheduler.fairness.virtual_counter import VirtualTokenCounter

costs = st.lists(st.floats(1, 1_000), min_size=1, max_size=60)


@given(st.dictionaries(st.sampled_from("abcdef"), costs, min_size=2), st.data())
@settings(deadline=None)
def test_backlogged_tenants_differ_by_at_most_the_largest_cost_a_weight(sizes, data):
    weights = {t: data.draw(st.sampled_from([1.0, 2.0, 4.0]), label=t) for t in sizes}
    fairness = VirtualTokenCounter(lambda tenant: weights[tenant])
    served = dict.fromkeys(sizes, 0.0)
    left = {tenant: list(costs) for tenant, costs in sizes.items()}
    largest = max(c / weights[t] for t, cs in sizes.items() for c in cs)
    for tenant in sizes:
        fairness.backlogged(TenantId(tenant))
    while all(left.values()):
        tenant = fairness.pick()
        cost = left[tenant].pop()
        fairness.charge(tenant, cost)
        served[tenant] += cost / weights[tenant]
        assert max(served.values()) - min(served.values()) <= 2 * largest + 1e-6


@given(st.integers(1, 50), costs)
@settings(deadline=None)
def test_idleness_banks_no_credit(rounds, sizes):
    fairness = VirtualTokenCounter(lambda _: 1.0)
    fairness.backlogged(TenantId("busy"))
    for _ in range(rounds):
        for cost in sizes:
            fairness.charge(TenantId("busy"), cost)
            fairness.produced(TenantId("busy"), cost)
    fairness.backlogged(TenantId("late"))
    assert fairness.counter(TenantId("late")) >= fairness.counter(TenantId("busy"))


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "discard", "raise", "lower"]),
        st.sampled_from("abcde"),
        st.floats(0, 100),
    ),
    max_size=80,
)


@given(actions)
@settings(deadline=None)
def test_lazy_heap_agrees_with_a_plain_minimum(steps):
    values = dict.fromkeys("abcde", 0.0)
    heap: LazyMinHeap[str] = LazyMinHeap(values.__getitem__)
    live: set[str] = set()
    for action, key, amount in steps:
        if action == "add":
            heap.add(key)
            live.add(key)
        elif action == "discard":
            heap.discard(key)
            live.discard(key)
        elif action == "raise":
            values[key] += amount
        else:
            values[key] -= amount
            if key in live:
                heap.add(key)
        least = heap.least()
        assert (least is None) == (not live)
        if least is not None:
            assert values[least] == min(values[k] for k in live)
        assert len(heap) == len(live)


@given(st.lists(st.sampled_from([-1, 0]), min_size=300, max_size=300))
@settings(deadline=None, max_examples=20)
def test_lazy_heap_does_not_grow_while_a_value_goes_up_and_down(values):
    current = {"a": 0}
    heap: LazyMinHeap[str] = LazyMinHeap(current.__getitem__)
    for value in values:
        current["a"] = value
        heap.add("a")
        assert heap.least() == "a"
    assert len(heap._heap) <= 65
