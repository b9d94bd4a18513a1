"""Whose prompt is tokenised next? Tenants take turns at a few threads.

Invariant: no tenant holds all threads while it has more than one, so a tenant with short prompts
waits for at most one prompt of another's burst; a job whose client left before its turn is dropped.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    tenant_id: str
    work: Callable[[], Any]
    done: "asyncio.Future[Any]"


class FairExecutor:
    """Runs CPU work of many tenants on `threads` threads of `executor`. One event loop."""

    def __init__(self, executor: Executor, threads: int) -> None:
        self._executor = executor
        self._threads = threads
        self._share_max = max(1, threads - 1)
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Job]] = {}
        self._turns = 0
        self._turn_of: dict[str, int] = {}  # of tenants that run or wait

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """The result of `work()`; cancelling gives up a turn that has not come yet."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(_Job(tenant_id, work, done))
        self._fill()
        return await done

    def _fill(self) -> None:
        while self._running.total() < self._threads:
            job = self._next()
            if job is None:
                return
            self._running[job.tenant_id] += 1
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._executor, job.work)
            running.add_done_callback(partial(self._finish, job))

    def _next(self) -> _Job | None:
        """The oldest job of the tenant that was served longest ago, if somebody still waits."""
        for tenant_id in sorted(self._waiting, key=lambda one: self._turn_of.get(one, 0)):
            jobs = self._waiting[tenant_id]
            while jobs and jobs[0].done.done():
                jobs.popleft()
            if not jobs:
                del self._waiting[tenant_id]
            elif self._running[tenant_id] < self._share_max:
                self._turns += 1
                self._turn_of[tenant_id] = self._turns
                return jobs.popleft()
        return None

    def _finish(self, job: _Job, result: "asyncio.Future[Any]") -> None:
        self._running[job.tenant_id] -= 1
        if not self._running[job.tenant_id]:
            del self._running[job.tenant_id]
            if not self._waiting.get(job.tenant_id):
                self._turn_of.pop(job.tenant_id, None)
        if result.cancelled():
            job.done.cancel()
        elif job.done.done():
            result.exception()  # its client has left: nobody asks any more
        elif (error := result.exception()) is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(result.result())
        self._fill()
