"""Who keeps the workers alive and carries out placement? The pool's loop.

Invariant: each worker has one task that owns its link; a lost worker is reaped, its replicas are
reported gone once, and it is started again with backoff. All calls to the listener happen on the
event loop, in the order of the worker's events.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mantle.core.clock import Clock
from mantle.core.errors import LoadFailed, ReplicaLost
from mantle.core.ids import ModelId, ReplicaId, WorkerId
from mantle.engine.port import (
    Command,
    Load,
    Loaded,
    LoadFault,
    LoadReport,
    LoadSpec,
    Parked,
    Stepped,
    Unload,
    Unloaded,
    WorkerEvent,
    WorkerLink,
)
from mantle.pool.placement import (
    DrainReplica,
    LoadReplica,
    Placement,
    PoolEffect,
    RefuseModel,
    UnloadReplica,
)
from mantle.pool.port import Demand, PoolListener, ResidencyState
from mantle.pool.replica import ReplicaState

log = logging.getLogger("mantle.pool")

RESTART_BACKOFF_S_FIRST = 0.2
RESTART_BACKOFF_S_MAX = 30.0
HEALTHY_AFTER_S = 5.0
"""A worker that lived so long is no crash at start: it is started again at once."""

StartWorker = Callable[[WorkerId], Awaitable[WorkerLink]]


class Supervisor:
    """Implements `ReplicaPool` and `PoolPort` over any kind of worker link."""

    def __init__(
        self,
        *,
        placement: Placement,
        start_worker: StartWorker,
        budgets: Mapping[WorkerId, int],
        spec_of: Callable[[ModelId], LoadSpec],
        window_of: Callable[[ModelId], int],
        clock: Clock,
    ) -> None:
        self._placement = placement
        self._start_worker = start_worker
        self._budgets = dict(budgets)
        self._spec_of = spec_of
        self._window_of = window_of
        self._clock = clock
        self._listener: PoolListener | None = None
        self._links: dict[WorkerId, WorkerLink] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._warm: set[ModelId] = set()  # wanted though nobody waits for them
        self._refused: dict[ModelId, str] = {}  # what the log has said
        self.changed = asyncio.Event()
        self.restarts = 0

    # --- life -----------------------------------------------------------------------------------
    def start(self) -> None:
        """Start one task a worker."""
        for worker_id in self._budgets:
            task = asyncio.create_task(self._keep_worker(worker_id))
            task.add_done_callback(_tell_if_broken)
            self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links.values()):
            await link.close()
        self._links.clear()

    # --- ReplicaPool ----------------------------------------------------------------------------
    def set_listener(self, listener: PoolListener) -> None:
        self._listener = listener

    def send(self, replica_id: ReplicaId, commands: Sequence[Command]) -> None:
        replica = self._placement.replica(replica_id)
        link = self._links.get(replica.worker_id) if replica else None
        if link is not None:
            link.send(commands)

    def rebalance(self, demand: Mapping[ModelId, Demand], running: Mapping[ReplicaId, int]) -> None:
        wanted = {model_id: Demand(0.0, 0.0) for model_id in self._warm} | dict(demand)
        self._perform(self._placement.decide(wanted, running, self._clock.now_ms()))

    def keep_warm(self, model_ids: Iterable[ModelId]) -> None:
        """Load these as soon as there is room, even before somebody asks for them.

        A worker's loss warms what it held, so that its return is as it was before.
        """
        self._warm |= set(model_ids)

    # --- PoolPort and health ----------------------------------------------------------------------
    def residency(self, model_id: ModelId) -> ResidencyState:
        return self._placement.residency(model_id)

    def window_tokens(self, model_id: ModelId) -> int:
        return self._window_of(model_id)

    def workers_alive(self) -> int:
        """Workers whose link is up now."""
        return len(self._links)

    # --- inside ---------------------------------------------------------------------------------
    @property
    def _told(self) -> PoolListener:
        assert self._listener is not None, "set_listener comes before start"
        return self._listener

    async def _keep_worker(self, worker_id: WorkerId) -> None:
        backoff_s = RESTART_BACKOFF_S_FIRST
        while True:
            started_ms = self._clock.now_ms()
            try:
                await self._run_worker(worker_id)
            except ReplicaLost as error:
                log.warning("worker %s lost: %s", worker_id, error.message)
            except OSError as error:
                log.error("worker %s does not start: %s", worker_id, error.strerror)
            self.restarts += 1
            if self._clock.now_ms() - started_ms > HEALTHY_AFTER_S * 1_000:
                backoff_s = RESTART_BACKOFF_S_FIRST
            else:
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, RESTART_BACKOFF_S_MAX)

    async def _run_worker(self, worker_id: WorkerId) -> None:
        """One life of a worker. Raises `ReplicaLost` when it ends."""
        link = await self._start_worker(worker_id)
        self._links[worker_id] = link
        self._placement.worker_up(worker_id, self._budgets[worker_id])
        self.changed.set()
        log.info("worker %s is up", worker_id)
        try:
            while True:
                for event in await link.receive():
                    self._on_event(event)
        finally:
            del self._links[worker_id]
            lost = self._placement.worker_down(worker_id)
            self.keep_warm(r.model_id for r in lost if not r.is_leaving)
            for replica in lost:
                if replica.state is not ReplicaState.LOADING:
                    self._told.replica_gone(replica.id, "its worker was lost")
            with contextlib.suppress(ReplicaLost):
                await link.close()

    def _on_event(self, event: WorkerEvent) -> None:
        if isinstance(event, Stepped):
            self._told.stepped(ReplicaId(event.replica_id), event.report)
        elif isinstance(event, Parked):
            self._told.parked(ReplicaId(event.replica_id), event.sequence_id)
        elif isinstance(event, Loaded):
            self._on_loaded(ReplicaId(event.replica_id), event.report)
        elif isinstance(event, LoadFault):
            self._on_fault(ReplicaId(event.replica_id), event.message)
        elif isinstance(event, Unloaded):
            self._placement.unloaded(ReplicaId(event.replica_id))

    def _on_loaded(self, replica_id: ReplicaId, report: LoadReport) -> None:
        size_bytes = report.size_bytes + report.kv_tokens * report.kv_bytes_per_token
        replica = self._placement.loaded(replica_id, size_bytes, self._clock.now_ms())
        if replica is None:
            return
        self._warm.discard(replica.model_id)
        self._refused.pop(replica.model_id, None)
        log.info(
            "model %s is ready on %s: %d MiB in %.0f ms",
            replica.model_id,
            replica.worker_id,
            size_bytes >> 20,
            report.load_ms,
        )
        self._told.replica_ready(replica_id, replica.model_id, report)
        self.changed.set()

    def _on_fault(self, replica_id: ReplicaId, message: str) -> None:
        replica = self._placement.replica(replica_id)
        if replica is None:
            return
        log.error("model %s failed on %s: %s", replica.model_id, replica.worker_id, message)
        self._warm.discard(replica.model_id)
        was_serving = replica.state is not ReplicaState.LOADING
        effects = self._placement.load_failed(replica_id, message, self._clock.now_ms())
        self.changed.set()
        if was_serving:
            self._told.replica_gone(replica_id, message)
        self._perform(effects)

    def _perform(self, effects: list[PoolEffect]) -> None:
        for effect in effects:
            if isinstance(effect, LoadReplica):
                log.info("loading model %s on %s", effect.model_id, effect.worker_id)
                load = Load(effect.replica_id, self._spec_of(effect.model_id))
                self._links[effect.worker_id].send([load])
            elif isinstance(effect, DrainReplica):
                self._told.replica_draining(effect.replica_id)
            elif isinstance(effect, UnloadReplica):
                self._unload(effect)
            elif isinstance(effect, RefuseModel):
                if self._refused.get(effect.model_id) != effect.reason:
                    log.error("model %s can not be loaded: %s", effect.model_id, effect.reason)
                self._refused[effect.model_id] = effect.reason
                error = LoadFailed(
                    f"the model could not be loaded: {effect.reason}",
                    retry_after_ms=effect.retry_after_ms,
                    hint="retry later; the operator can see why in the log",
                )
                self._told.load_failed(effect.model_id, error)

    def _unload(self, effect: UnloadReplica) -> None:
        self._told.replica_gone(effect.replica_id, "unloaded for another model")
        link = self._links.get(effect.worker_id)
        if link is not None:
            link.send([Unload(effect.replica_id)])


def _tell_if_broken(task: "asyncio.Task[None]") -> None:
    """A worker's task never ends by itself: if it does, that is a bug, and not a quiet one."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("a worker is no longer kept: restart the server", exc_info=task.exception())
