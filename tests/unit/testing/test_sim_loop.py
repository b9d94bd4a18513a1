"""Does time jump when nothing is ready, and only then?"""

import asyncio
import time

import pytest

from mantle.testing.sim_clock import SimClock
from mantle.testing.sim_loop import run_on_sim_time


async def later(seconds):
    loop = asyncio.get_running_loop()
    due = loop.create_future()
    loop.call_later(seconds, due.set_result, None)
    await due
    return loop.time()


def test_an_hour_passes_at_once():
    clock = SimClock()
    started_s = time.monotonic()
    assert run_on_sim_time(later(3_600), clock) >= 3_600
    assert clock.now_ms() >= 3_600_000
    assert time.monotonic() - started_s < 5


def test_timers_go_off_in_order():
    async def three():
        return await asyncio.gather(later(3), later(1), later(2))

    third, first, second = run_on_sim_time(three())
    assert first < second < third


def test_work_of_a_thread_is_waited_for():
    async def work():
        return await asyncio.to_thread(sum, [1, 2])

    clock = SimClock()
    assert run_on_sim_time(work(), clock) == 3
    assert clock.now_ms() == 0


def test_waiting_for_what_never_comes_ends():
    async def forever():
        while True:
            await later(60)

    with pytest.raises(TimeoutError, match="a day of simulated time"):
        run_on_sim_time(forever())
