"""What if the whole server dies? The next one knows only what the journal has.

Invariant: everything else of the old server is gone, its workers too; what goes on is decided by
production's own `restore` and its recovery table; every client whose request was open gets either
the rest of it, or an end.
"""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mantle.core.epoch import FIRST_EPOCH, next_epoch
from mantle.core.outcome import Outcome
from mantle.core.request import Request
from mantle.journal.port import Finished, Recovered, RequestHistory
from mantle.pool.placement import Placement
from mantle.scheduler.restoring import restore
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.cluster import SimCluster
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import require
from mantle.testing.sim_cluster.losses import join
from mantle.testing.sim_cluster.paper_journal import PaperDisk, PaperJournal
from mantle.testing.sim_cluster.paper_request import Life, paper_prompt
from mantle.testing.sim_cluster.paper_store import PaperStore
from mantle.testing.sim_cluster.scribe import PINS
from mantle.testing.sim_cluster.witness import Witness

REATTACH_GRACE_MS = 1_000.0
"""So long a new server waits for the client of a request, then takes it back."""

STOP_MS_MAX = 200.0
"""From a failed fsync to the end of the process, at most."""


class MakeJournal(Protocol):
    """A server's writer over what lasts."""

    def __call__(
        self,
        store: PaperStore,
        disk: PaperDisk,
        events: EventQueue,
        on_failed: Callable[[], None],
    ) -> PaperJournal: ...


@dataclass(slots=True)
class Restarts:
    """The servers of one world, one after the other; the store and its disk outlive them."""

    cluster: SimCluster
    witness: Witness
    store: PaperStore
    disk: PaperDisk
    rng: random.Random
    new_scheduler: Callable[[], Scheduler]
    new_placement: Callable[[], Placement]
    new_journal: MakeJournal
    down_ms_after_fsync: float = 1_000.0

    def die(self, *, down_ms: float, damaged_records: int = 0) -> None:
        """The server is gone now, with its workers; so many records will be found damaged."""
        cluster = self.cluster
        if not cluster.is_up:
            return
        cluster.is_up = False
        cluster.live.clear()
        cluster.watcher.server_died(cluster.events.at_ms)
        assert cluster.scribe.journal is not None, "without a journal nothing is left"
        cluster.scribe.journal.die()
        for worker in cluster.workers.values():
            worker.die()
            worker.notice_loss()
        cluster.events.after(down_ms, partial(self.start, damaged_records))

    def start(self, damaged_records: int = 0) -> None:
        """A server starts, as `Platform.start` does: recover, restore, let the workers in."""
        cluster = self.cluster
        for _ in range(damaged_records):
            self.store.corrupt_one(self.rng)
        stop = partial(self._stop, cluster.server_number + 1)
        journal = self.new_journal(self.store, self.disk, cluster.events, stop)
        recovered = journal.recover()
        cluster.begin(self.new_scheduler(), self.new_placement(), journal)
        self._quarantine(recovered)
        restore(self, recovered, pins_of=lambda _: PINS, clock=cluster.events)
        self._tell_the_others()
        for worker in cluster.workers.values():
            if worker.id not in cluster.lost:
                join(cluster, worker)
        if cluster.live:
            cluster.tick_again()
        cluster.checked()

    # --- `Restorer`: what production's `restore` asks for ---------------------------------------
    def restore(self, request: Request, history: RequestHistory, *, exact: bool) -> Life:
        """See `Dispatcher.restore`."""
        life = self.witness.lives[request.id]
        self.witness.resumed(life, history)
        prompt = paper_prompt(history.prompt_count)
        life.request = dataclasses.replace(request, prompt_tokens=prompt)
        life.epoch = next_epoch(history.epoch) if history.was_dispatched else FIRST_EPOCH
        life.replica_id = life.kv_on = None
        if not history.was_dispatched:
            life.first_dispatch_ms = None
        life.written_tokens, life.is_deaf = len(history.output), False
        self._catch_up(life, history)
        self.cluster.go_on(life, len(history.output))
        if life.gave_up:
            self.cluster.events.after(REATTACH_GRACE_MS, partial(self.cluster.give_up, life))
        return life

    def write_end(self, end: Finished) -> None:
        """See `Dispatcher.write_end`."""
        self.cluster.scribe.write_end(self.witness.lives[end.request_id], end)

    # --- inside ---------------------------------------------------------------------------------
    def _stop(self, server_number: int) -> None:
        """The journal failed: the server stops soon, and until then it tells nobody anything."""

        def stop() -> None:
            if self.cluster.server_number == server_number:
                self.die(down_ms=self.down_ms_after_fsync)

        self.cluster.watcher.note("fsync fails", "")
        self.cluster.events.after(self.rng.uniform(0.0, STOP_MS_MAX), stop)

    def _quarantine(self, recovered: Recovered) -> None:
        """Clients of what cannot be believed get an error; nothing of it runs."""
        for damage in recovered.damaged:
            for life in self.witness.set_aside(damage, self.store):
                self.cluster.watcher.ended(life, Outcome.FAILED)
        believed = self.store.corrupted - {damage.id for damage in recovered.damaged}
        require(not believed, f"{believed} have damaged records, but were believed")

    def _tell_the_others(self) -> None:
        """Who was neither resumed nor ended just now: its end was durable, or nobody knew of it."""
        cluster = self.cluster
        for life in list(self.witness.open_lives()):
            request_id = life.request.id
            if request_id in cluster.live or request_id in cluster.scribe.ending:
                continue
            if life.final is None:
                self.witness.forgotten(life)
                cluster.watcher.ended(life, Outcome.REJECTED)
                continue
            if life.final.outcome is Outcome.COMPLETED:
                self._catch_up(life, self.store.history(request_id))
            cluster.watcher.ended(life, life.final.outcome)

    def _catch_up(self, life: Life, history: RequestHistory) -> None:
        """The client attaches again, and reads on from where it was."""
        first_index = life.shown_tokens
        found = len(history.output)
        require(
            first_index <= found or not life.request.keeps_content,
            f"{life.request.id}: {first_index} tokens were shown, {found} are left",
        )
        token_ids = history.output[first_index:]
        if token_ids:
            self.cluster.watcher.shown(life, first_index, token_ids)
