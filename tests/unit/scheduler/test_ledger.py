"""Does the ledger count right, forget in time, and stay small?"""

import pytest

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.scheduler.ledger import OTHERS, Ledger, Tally

A = TenantId("a")
STANDARD = Lane.STANDARD


def test_sums_are_of_the_newest_slices_only():
    ledger = Ledger(slice_ms=100.0, slices=2)
    for now_ms in (1_010.0, 1_110.0, 1_210.0):
        ledger.served(STANDARD, A, 1.0, now_ms)
        ledger.parked(STANDARD, A, now_ms)
    tally = ledger.totals(1_250.0)[STANDARD, A]
    assert (tally.served_cost, tally.parks) == (2.0, 2)
    assert ledger.since_ms(1_250.0) == 1_100.0
    assert ledger.totals(1_450.0) == {}


def test_a_young_ledger_counts_from_its_first_event():
    ledger = Ledger(slice_ms=100.0, slices=3)
    assert ledger.since_ms(5_000.0) == 5_000.0
    ledger.served(STANDARD, A, 1.0, 5_020.0)
    assert ledger.since_ms(5_050.0) == 5_020.0


@pytest.mark.parametrize("share", [0.5, 0.99, 1.0])
def test_quantiles_of_waits_are_exact_to_five_percent(share):
    tally = Tally()
    for number in range(1, 1_001):
        tally.waited(number * 37.0)
    assert tally.wait_ms_at(share) == pytest.approx(1_000 * share * 37.0, rel=0.05)


def test_who_did_not_wait_waited_nothing():
    tally = Tally()
    tally.waited(0.0)
    tally.waited(0.4)
    assert tally.wait_ms_at(0.99) == 0.0
    assert Tally().wait_ms_at(0.5) == 0.0


def test_memory_is_bounded_by_tenants_slices_and_bins():
    ledger = Ledger(slice_ms=100.0, slices=3, tenants_max=50)
    for number in range(5_000):
        ledger.waited(STANDARD, TenantId(f"t{number}"), float(number * 977), float(number))
    assert len(ledger) <= 3 * (50 + 1)
    totals = ledger.totals(5_000.0)
    assert max(len(tally._bins) for tally in totals.values()) < 200
    assert totals[STANDARD, OTHERS].waits > 0
    assert sum(tally.waits for tally in totals.values()) == 5_000 - 4_800
