"""Can one tenant's long prompts keep another's short one from being tokenised?"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mantle.gateway.fair_executor import FairExecutor


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def test_a_burst_leaves_a_thread_for_others(pool):
    fair, gate = FairExecutor(pool, 2), threading.Event()
    burst = [asyncio.create_task(fair.run("noisy", gate.wait)) for _ in range(10)]
    async with asyncio.timeout(5):
        assert await fair.run("quiet", lambda: "done") == "done"
    gate.set()
    assert all(await asyncio.gather(*burst))


async def test_tenants_take_turns(pool):
    fair, order = FairExecutor(pool, 1), []
    jobs = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5)]
    await asyncio.gather(*(fair.run(t, lambda n=n: order.append(n)) for t, n in jobs))
    assert order == [1, 4, 2, 5, 3]


async def test_job_whose_client_left_is_not_run(pool):
    fair, gate, ran = FairExecutor(pool, 1), threading.Event(), []
    first = asyncio.create_task(fair.run("a", gate.wait))
    left = asyncio.create_task(fair.run("a", lambda: ran.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    gate.set()
    await first
    await fair.run("a", lambda: ran.append("stayed"))
    assert ran == ["stayed"]


async def test_error_reaches_the_one_who_asked(pool):
    fair = FairExecutor(pool, 2)
    with pytest.raises(ZeroDivisionError):
        await fair.run("a", lambda: 1 // 0)
    assert await fair.run("a", lambda: 7) == 7
