"""Is parked KV kept only where it pays, and never beyond its bound?"""

from mantle.engine.parked_kv import ParkedStore, ParkingCosts
from mantle.engine.port import ParkedSequence


def parked(sequence_id, size):
    return ParkedSequence(sequence_id, [], bytes(size), size)


def test_kept_copy_is_given_back_once():
    store = ParkedStore(100)
    one = parked(1, 40)
    assert store.keep(one) == 40
    assert store.take(1) is one
    assert store.take(1) is None
    assert store.held_bytes == 0


def test_oldest_copy_goes_first_when_memory_is_short():
    store = ParkedStore(100)
    for number in (1, 2, 3):
        store.keep(parked(number, 40))
    assert store.held_bytes == 80
    assert store.take(1) is None
    assert store.take(3) is not None


def test_copy_larger_than_the_bound_is_not_kept_and_drives_nobody_out():
    store = ParkedStore(100)
    store.keep(parked(1, 90))
    assert store.keep(parked(2, 101)) == 0
    assert store.take(1) is not None


def test_sequence_without_kv_is_not_kept():
    assert ParkedStore(100).keep(ParkedSequence(1, [5], None)) == 0


def test_forgotten_copy_frees_its_memory():
    store = ParkedStore(100)
    store.keep(parked(1, 40))
    store.forget(1)
    store.forget(1)
    assert store.held_bytes == 0


def test_keeping_is_decided_from_what_was_measured():
    costs = ParkingCosts()
    assert costs.keeping_is_cheaper()
    costs.learn_prefill(tokens=100, took_ms=200.0)
    costs.learn_copy(tokens=100, took_ms=3.0)
    assert costs.keeping_is_cheaper()
    for _ in range(20):
        costs.learn_copy(tokens=100, took_ms=150.0)
    assert not costs.keeping_is_cheaper()
