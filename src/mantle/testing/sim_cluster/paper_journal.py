"""How do records become durable on paper? Production's group commit, on the virtual clock.

Invariant: as in `journal/writer.py`: a commit takes all that gathered while the last one ran;
callbacks run in order of appending, after their commit; a full store is tried again and loses
nothing; after a failed fsync nothing is acknowledged any more.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mantle.core.errors import JournalFault
from mantle.journal.fence import Fence
from mantle.journal.port import Recovered
from mantle.journal.record import Parked, Record
from mantle.journal.writer import RETRY_S
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import require
from mantle.testing.sim_cluster.paper_store import PaperStore


@dataclass(slots=True)
class PaperDisk:
    """What the machine's disk does to a commit. Times are milliseconds of the virtual clock."""

    rng: random.Random
    commit_ms_usual: tuple[float, float]
    commit_ms_slow: tuple[float, float] = (50.0, 500.0)
    slow_until_ms: float = 0.0
    full_until_ms: float = 0.0
    next_fsync_fails: bool = False

    def commit_ms(self, now_ms: float) -> float:
        """How long a commit that begins now will take."""
        is_slow = now_ms < self.slow_until_ms
        return self.rng.uniform(*(self.commit_ms_slow if is_slow else self.commit_ms_usual))

    def is_full(self, now_ms: float) -> bool:
        return now_ms < self.full_until_ms

    def reached_the_platter(self) -> bool:
        """Whether a commit that nobody heard the end of is durable: nobody can know."""
        return self.rng.random() < 0.5


@dataclass(slots=True)
class _Batch:
    records: list[Record] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class PaperJournal:
    """One server's writer: the synchronous half of the `Journal` port.

    `on_failed` is called once, when the journal cannot be trusted any more.
    """

    store: PaperStore
    disk: PaperDisk
    events: EventQueue
    on_failed: Callable[[], None]
    fence: Fence = field(default_factory=Fence)
    trouble: str = ""
    has_failed: bool = False
    is_dead: bool = False
    _gathered: _Batch = field(default_factory=_Batch)
    _in_flight: _Batch | None = None

    def recover(self) -> Recovered:
        """What the last server left; the fence learns of it as in `DurableJournal.recover`."""
        recovered = self.store.recover()
        for ask in recovered.asks:
            for request in ask.requests:
                if request.finished is None:
                    self.fence.know(request.request.id, request.epoch)
        for request_id, epoch in recovered.orphans:
            self.fence.know(request_id, epoch)
        return recovered

    def admits(self, record: Parked) -> bool:
        """Whether it may be written; the fence stays as it is."""
        try:
            self.fence.admit(record)
        except JournalFault:
            return False
        return True

    def append(self, records: Sequence[Record], committed: Callable[[], None]) -> None:
        """See `Journal.append`."""
        require(not self.is_dead, "a server that has died wrote something")
        if self.has_failed:
            raise JournalFault(self.trouble)
        for record in records:
            self.fence.admit(record)
        self._gathered.records += records
        self._gathered.callbacks.append(committed)
        if self._in_flight is None:
            self._begin()

    def die(self) -> None:
        """The server is gone: what had gathered is lost, what was in flight may be durable."""
        batch, self._in_flight = self._in_flight, None
        self.is_dead, self._gathered = True, _Batch()
        full = self.disk.is_full(self.events.at_ms)
        if batch is not None and not full and self.disk.reached_the_platter():
            self.store.commit(batch.records)

    def _begin(self) -> None:
        batch, self._gathered = self._gathered, _Batch()
        self._in_flight = batch
        self.events.after(self.disk.commit_ms(self.events.at_ms), partial(self._land, batch))

    def _land(self, batch: _Batch) -> None:
        if self._in_flight is not batch:
            return  # the server died meanwhile
        if self.disk.is_full(self.events.at_ms):
            self.trouble = "the journal's disk is full"
            self.events.after(RETRY_S * 1e3, partial(self._land, batch))
            return
        if self.disk.next_fsync_fails:
            self._fail(batch)
            return
        self.store.commit(batch.records)
        self._acknowledge(batch)

    def _acknowledge(self, batch: _Batch) -> None:
        self.trouble, self._in_flight = "", None
        for callback in batch.callbacks:
            callback()
        if self._gathered.records:
            self._begin()

    def _fail(self, batch: _Batch) -> None:
        """Nobody is told, and nothing is tried again: the server must stop."""
        self.disk.next_fsync_fails = False
        self.has_failed, self.trouble, self._in_flight = True, "an fsync failed", None
        if self.disk.reached_the_platter():
            self.store.commit(batch.records)
        self.on_failed()
