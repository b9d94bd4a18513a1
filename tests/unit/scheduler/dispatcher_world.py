"""A dispatcher over a real supervisor and scripted workers, on simulated time."""

import asyncio
from contextlib import asynccontextmanager

from mantle.core.ids import ModelId, WorkerId
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.pool.placement import Placement, PlacementRules
from mantle.pool.supervisor import Supervisor
from mantle.scheduler.dispatcher import Dispatcher
from mantle.scheduler.observer import SilentObserver
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.in_process_link import InProcessLink
from mantle.testing.requests import a_request
from mantle.testing.scripts import load_spec, write_script
from mantle.testing.sim_clock import SimClock

FAKE = ModelId("fake")
LETTERS = [chr(code) for code in range(ord("a"), ord("a") + 26)]


class RecordingJournal(EphemeralJournal):
    """Also keeps what it was given; `held` delays commits until `release`."""

    def __init__(self):
        super().__init__()
        self.records = []
        self.held = False
        self._waiting = []

    def append(self, records, committed):
        super().append(records, lambda: None)
        self.records += records
        if self.held:
            self._waiting.append(committed)
        else:
            committed()

    def release(self):
        self.held = False
        waiting, self._waiting = self._waiting, []
        for committed in waiting:
            committed()

    def of(self, kind):
        return [r for r in self.records if isinstance(r, kind)]


class World:
    def __init__(self, folder, script, slots, pool):
        self.clock = SimClock()
        self.journal = RecordingJournal()
        self.links = []
        self.path = write_script(folder, script)
        self.supervisor = pool(
            placement=Placement(PlacementRules(), lambda _: 1),
            start_worker=self.start_worker,
            budgets={WorkerId("w0"): 100},
            spec_of=lambda _: load_spec(self.path, slots=slots),
            window_of=lambda _: 100,
            clock=self.clock,
        )
        self.dispatcher = Dispatcher(
            scheduler=Scheduler(),
            pool=self.supervisor,
            journal=self.journal,
            clock=self.clock,
            observer=SilentObserver(),
        )

    async def start_worker(self, _worker_id):
        link = InProcessLink.scripted(self.clock)
        self.links.append(link)
        return link

    def submit(self, **fields):
        (generation,) = self.dispatcher.submit([a_request(model=FAKE, **fields)])
        return generation


@asynccontextmanager
async def world(folder, script, *, slots=4, pool=Supervisor):
    made = World(folder, script, slots, pool)
    made.supervisor.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        await made.dispatcher.close()
        await made.supervisor.close()


async def read(generation):
    return [token async for chunk in generation for token in chunk.token_ids]


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)
