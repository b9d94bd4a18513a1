"""Simulated time moves only when told to."""

import pytest

from mantle.testing.sim_clock import SimClock


def test_both_clocks_move_together_and_only_when_told() -> None:
    clock = SimClock(now_ms=10.0, wall_s=100.0)
    assert (clock.now_ms(), clock.wall_s()) == (10.0, 100.0)
    clock.advance(500.0)
    clock.sleep(1.0)
    assert (clock.now_ms(), clock.wall_s()) == (1510.0, pytest.approx(101.5))


def test_time_does_not_go_back() -> None:
    with pytest.raises(AssertionError):
        SimClock().advance(-1.0)
