"""One machine: worker processes beside the gateway, and the memory they may use."""

import os
from collections.abc import Awaitable, Callable

from mantle.core.ids import WorkerId
from mantle.engine.port import EngineSettings, WorkerLink
from mantle.engine.worker_link import SubprocessWorkerLink

MEMORY_SHARE_DEFAULT = 0.7
"""Share of the memory that is free at start which the pool may fill (weights and KV)."""

FIRST_WORKER = WorkerId("w0")


def free_memory_bytes() -> int:
    """Memory this machine could give now, from /proc/meminfo; half of all where that is absent."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def memory_budget_bytes(memory_mib: int) -> int:
    """The pool's budget: what the config says, or most of what is free."""
    return memory_mib << 20 if memory_mib else int(free_memory_bytes() * MEMORY_SHARE_DEFAULT)


def subprocess_starter(
    engine: EngineSettings,
) -> Callable[[WorkerId], Awaitable[WorkerLink]]:
    """How the pool starts a worker process."""

    async def start(worker_id: WorkerId) -> WorkerLink:
        return await SubprocessWorkerLink.start(worker_id, threads=engine.threads)

    return start
