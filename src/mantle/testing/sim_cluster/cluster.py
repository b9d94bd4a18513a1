"""Who does what the real scheduler and the real placement decide, on paper? The dispatcher's and
the supervisor's parts, without text, sockets or asyncio.

Invariant: the decisions are production's own objects; here nothing is decided. Every accepted
request is ended once, and its client sees of it what the journal has committed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from mantle.core.epoch import Epoch
from mantle.core.errors import QueueFull
from mantle.core.ids import ModelId, ReplicaId, RequestId, WorkerId
from mantle.core.outcome import Outcome
from mantle.pool.placement import (
    DrainReplica,
    LoadReplica,
    Placement,
    PoolEffect,
    RefuseModel,
    UnloadReplica,
)
from mantle.pool.port import Demand
from mantle.pool.replica import ReplicaState
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.effects import Abort, Dispatch, Effect, Expire, Lose, Park
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.cost_model import CostModel
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import require
from mantle.testing.sim_cluster.paper_engine import PaperSequence, Progress
from mantle.testing.sim_cluster.paper_journal import PaperJournal
from mantle.testing.sim_cluster.paper_request import Ask, Life
from mantle.testing.sim_cluster.paper_worker import PaperWorker
from mantle.testing.sim_cluster.scribe import Scribe
from mantle.testing.sim_cluster.watcher import Watcher


@dataclass(frozen=True, slots=True)
class PaperModel:
    """What a replica of one model is: its memory, and what it holds."""

    id: ModelId
    size_bytes: int
    slots: int
    kv_tokens: int
    window_tokens: int


@dataclass(slots=True)
class SimCluster:
    """One pool on paper. Without `placement` the replicas are installed once and stay.

    Until `begin` there is no journal: clients see everything at once.
    """

    events: EventQueue
    scheduler: Scheduler
    models: Mapping[ModelId, PaperModel]
    cost: CostModel
    watcher: Watcher
    placement: Placement | None = None
    tick_ms: float = 50.0
    workers: dict[WorkerId, PaperWorker] = field(default_factory=dict)
    budgets: dict[WorkerId, int] = field(default_factory=dict)
    lost: set[WorkerId] = field(default_factory=set)  # died by themselves, and are not back
    live: dict[RequestId, Life] = field(default_factory=dict)
    stale: dict[RequestId, Progress] = field(default_factory=dict)  # said by an earlier attempt
    is_up: bool = True
    server_number: int = 0
    scribe: Scribe = field(init=False)
    _worker_of: dict[ReplicaId, PaperWorker] = field(default_factory=dict)
    _accepted: int = 0
    _asked: int = 0
    _ticking: bool = False

    def __post_init__(self) -> None:
        self.scribe = Scribe(self.watcher)

    # --- setting up -----------------------------------------------------------------------------
    def add_worker(self, worker: PaperWorker, budget_bytes: int) -> None:
        """A machine that servers find when they start; their placement may fill its memory."""
        self.workers[worker.id] = worker
        self.budgets[worker.id] = budget_bytes

    def install(self, worker: PaperWorker, replica_id: ReplicaId, model_id: ModelId) -> None:
        """A replica that is there from the start."""
        self.workers[worker.id] = worker
        worker.install(replica_id, model_id)
        self._ready(worker, replica_id, model_id)

    # --- what clients do ------------------------------------------------------------------------
    def arrive(self, ask: Ask) -> None:
        """One ask arrives; all its branches are accepted, or none."""
        if not self.is_up or self.scribe.refuses_asks:
            self.watcher.rejected(ask)
            return
        now_ms = self.events.at_ms
        self._asked += 1
        ask_id = f"a{self._asked}"
        lives: list[Life] = []
        for _ in range(ask.branches):
            self._accepted += 1
            request = ask.request(RequestId(f"r{self._accepted}"))
            lives.append(Life(request, ask.output_tokens, ask_id))
        try:
            effects = self.scheduler.submit([life.request for life in lives], now_ms)
        except QueueFull:
            self.watcher.rejected(ask)
            return
        for life in lives:
            self.live[life.request.id] = life
            self.watcher.accepted(life, now_ms)
            if ask.cancel_after_ms is not None:
                self.events.after(ask.cancel_after_ms, partial(self.give_up, life))
        self.scribe.accepted(lives)
        self.tick_again()
        self._perform(effects)
        if self.placement is not None and not self.scheduler.residents.serves(ask.model_id):
            self._rebalance()
        self.scribe.asked(ask, ask_id, lives)
        self.checked()

    def give_up(self, life: Life) -> None:
        """The client takes its request back; one that hears it too late has its end already."""
        life.gave_up = True
        if life.request.id in self.live:
            effects = self.scheduler.cancel(life.request.id, self.events.at_ms)
            self._perform(effects)
            self._end(life, Outcome.CANCELLED)
            self.checked()

    # --- what workers say (`WorkerEars`) --------------------------------------------------------
    def on_progress(self, replica_id: ReplicaId, reports: list[Progress]) -> None:
        now_ms = self.events.at_ms
        current = [
            (life, progress)
            for progress in reports
            if (life := self._placed(replica_id, progress.request_id)) is not None
        ]
        if not self.scribe.step(current):
            self.watcher.is_refused(f"tokens from {replica_id}")
            return
        for life, progress in current:
            if progress.count:
                life.last_said = progress
                self.watcher.progressed(life, progress, now_ms)
                self.scheduler.tokens_produced(
                    life.request.id, count=progress.count, cached_tokens=0, now_ms=now_ms
                )
            if progress.finished:
                self._leave(life)
        for life, progress in current:
            if progress.finished:
                self._perform(self.scheduler.released(life.request.id, now_ms))
        self.checked()

    def on_parked(self, replica_id: ReplicaId, request_id: RequestId, epoch: Epoch) -> None:
        life = self._placed(replica_id, request_id)
        if life is None:
            return
        if not self.scribe.admits(life, epoch):
            self.watcher.is_refused(f"a parking on {replica_id}")
            return
        life.replica_id, life.kv_on = None, replica_id
        self.scribe.parked(request_id, epoch)
        effects = self.scheduler.parked(request_id, self.events.at_ms)
        self.watcher.requeued(life, self.events.at_ms)
        self._perform(effects)
        self.checked()

    def on_loaded(self, replica_id: ReplicaId) -> None:
        assert self.placement is not None, "only placement loads"
        replica = self.placement.replica(replica_id)
        size_bytes = self.models[replica.model_id].size_bytes if replica else 0
        replica = self.placement.loaded(replica_id, size_bytes, self.events.at_ms)
        if replica is not None:
            self._ready(self.workers[replica.worker_id], replica_id, replica.model_id)
            self.checked()

    def on_fault(self, replica_id: ReplicaId) -> None:
        assert self.placement is not None, "only placement loads"
        replica = self.placement.replica(replica_id)
        if replica is None:
            return
        self.watcher.note("fault", replica_id)
        was_serving = replica.state is not ReplicaState.LOADING
        effects = self.placement.load_failed(replica_id, "broken on purpose", self.events.at_ms)
        if was_serving:
            self.replica_gone(replica_id)
        self._place(effects)
        self.checked()

    def on_unloaded(self, replica_id: ReplicaId) -> None:
        assert self.placement is not None, "only placement unloads"
        self.placement.unloaded(replica_id)

    # --- what happens to the server (`restarts.py`) ---------------------------------------------
    def begin(self, scheduler: Scheduler, placement: Placement, journal: PaperJournal) -> None:
        """A new server; what is live is found by recovery."""
        self.server_number += 1
        self.scheduler = self.watcher.scheduler = scheduler
        self.placement = placement
        self.scribe = Scribe(self.watcher, journal)
        self.live, self._worker_of, self._ticking = {}, {}, False
        self.is_up = True

    def go_on(self, life: Life, resume_from: int) -> None:
        """A request that was found waits again, as `Dispatcher.restore` has it."""
        request, now_ms = life.request, self.events.at_ms
        self.live[request.id] = life
        self.watcher.goes_on(life, now_ms)
        self._perform(self.scheduler.restore(request, life.epoch, resume_from, now_ms))

    # --- performing -----------------------------------------------------------------------------
    def _perform(self, effects: Iterable[Effect]) -> None:
        now_ms = self.events.at_ms
        for effect in effects:
            life = self.live.get(effect.request_id)
            if isinstance(effect, Dispatch):
                require(life is not None, f"{effect} of a request that is over")
                assert life is not None
                self._dispatch(effect, life)
            elif isinstance(effect, Park):
                if life is None:
                    continue  # it ended in the step that also freed a slot
                life.parks += 1
                self.watcher.parking(life, now_ms)
                self._worker_of[effect.replica_id].park(
                    effect.replica_id, effect.request_id, life.epoch
                )
            elif isinstance(effect, Abort):
                if life is not None:
                    self._worker_of[effect.replica_id].cancel(
                        effect.replica_id, effect.request_id, life.epoch
                    )
            elif isinstance(effect, Expire):
                require(life is not None, f"{effect} of a request that is over")
                assert life is not None
                self.watcher.expired(life, effect, now_ms)
                self._end(life, Outcome.EXPIRED)
            elif isinstance(effect, Lose):
                require(life is not None, f"{effect} of a request that is over")
                assert life is not None
                self._end(life, Outcome.FAILED)

    def _dispatch(self, effect: Dispatch, life: Life) -> None:
        request, replica_id = life.request, effect.replica_id
        self.watcher.dispatched(life, effect, self.events.at_ms)
        self.scribe.dispatched(effect)
        life.epoch, life.replica_id = effect.epoch, replica_id
        if life.last_said is not None:
            self.stale[request.id] = life.last_said
        computed = len(request.prompt_tokens) + effect.resume_from
        if life.kv_on == replica_id:
            prefill_tokens = self.cost.resume_ms * self.cost.prefill_tokens_per_s / 1e3
        else:
            prefill_tokens = float(computed)
        life.kv_on = None
        model = self.models[request.model_id]
        need = len(request.prompt_tokens) + request.max_output_tokens
        sequence = PaperSequence(
            request.id,
            effect.epoch,
            request.lane.rank,
            prefill_tokens,
            effect.resume_from,
            life.output_tokens - effect.resume_from,
            min(need, model.window_tokens),
        )
        self._worker_of[replica_id].admit(replica_id, sequence)

    def _end(self, life: Life, outcome: Outcome) -> None:
        self._leave(life)
        self.scribe.end(life, outcome)

    def _leave(self, life: Life) -> None:
        require(life.request.id in self.live, f"{life.request.id} ended twice")
        del self.live[life.request.id]
        self.watcher.left(life, self.events.at_ms)

    def _place(self, effects: Iterable[PoolEffect]) -> None:
        for effect in effects:
            self.watcher.note("placement", effect)
            if isinstance(effect, LoadReplica):
                worker = self.workers[effect.worker_id]
                self._worker_of[effect.replica_id] = worker
                worker.load(effect.replica_id, effect.model_id)
            elif isinstance(effect, DrainReplica):
                self.scheduler.replica_draining(effect.replica_id)
            elif isinstance(effect, UnloadReplica):
                self.replica_gone(effect.replica_id)
                self.workers[effect.worker_id].unload(effect.replica_id)
            elif isinstance(effect, RefuseModel):
                refused = self.scheduler.model_failed(effect.model_id, self.events.at_ms)
                for request_id in refused:
                    self._end(self.live[request_id], Outcome.FAILED)

    # --- inside ---------------------------------------------------------------------------------
    def _ready(self, worker: PaperWorker, replica_id: ReplicaId, model_id: ModelId) -> None:
        model = self.models[model_id]
        self._worker_of[replica_id] = worker
        self.watcher.note("replica ready", replica_id)
        capacity = ReplicaCapacity(
            replica_id, model_id, model.slots, model.kv_tokens, model.window_tokens
        )
        self._perform(self.scheduler.replica_ready(capacity, self.events.at_ms))

    def replica_gone(self, replica_id: ReplicaId) -> None:
        """What ran there goes back to its queue."""
        self.watcher.note("replica gone", replica_id)
        there = [life for life in self.live.values() if life.replica_id == replica_id]
        for life in there:
            life.replica_id = None
        for life in self.live.values():
            if life.kv_on == replica_id:
                life.kv_on = None
        effects = self.scheduler.replica_gone(replica_id, self.events.at_ms)
        for life in there:
            self.watcher.requeued(life, self.events.at_ms)
        self._perform(effects)

    def _placed(self, replica_id: ReplicaId, request_id: RequestId) -> Life | None:
        """The request, if it is on that replica: else it is nobody's, as in the outbox.

        Whether this attempt of it still counts is for the fence to say (law 6).
        """
        life = self.live.get(request_id)
        return None if life is None or life.replica_id != replica_id else life

    def _rebalance(self) -> None:
        if self.placement is None:
            return
        now_ms = self.events.at_ms
        queues, residents = self.scheduler.queues, self.scheduler.residents
        demand: dict[ModelId, Demand] = {}
        for model_id, cost in queues.demand().items():
            is_served = residents.serves(model_id)
            wait_ms = 0.0 if is_served else queues.oldest_wait_ms(model_id, now_ms)
            demand[model_id] = Demand(cost, wait_ms)
        running = {r.replica_id: len(r.running) for r in residents.replicas()}
        self._place(self.placement.decide(demand, running, now_ms))

    def tick_again(self) -> None:
        """Let time be noticed, as long as something lives."""
        if not self._ticking:
            self._ticking = True
            self.events.after(self.tick_ms, partial(self._tick, self.server_number))

    def _tick(self, server_number: int) -> None:
        if not self.is_up or server_number != self.server_number:
            return
        self._ticking = False
        self._perform(self.scheduler.tick(self.events.at_ms))
        self._rebalance()
        self.checked()
        if self.live:
            self.tick_again()

    def checked(self) -> None:
        """An event is over: does everything still hold?"""
        self.watcher.check(self)
