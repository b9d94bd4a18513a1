"""What does one machine do? It loads models, runs their engines and speaks over an ordered link.

Invariant: commands and messages of one session arrive in the order they were sent, possibly late;
nothing of an earlier session arrives after the loss was noticed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mantle.core.epoch import Epoch
from mantle.core.ids import ModelId, ReplicaId, RequestId, WorkerId
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import require
from mantle.testing.sim_cluster.paper_engine import PaperEngine, PaperSequence, Progress


class WorkerEars(Protocol):
    """Who hears a worker."""

    def on_progress(self, replica_id: ReplicaId, reports: list[Progress]) -> None: ...

    def on_parked(self, replica_id: ReplicaId, request_id: RequestId, epoch: Epoch) -> None: ...

    def on_loaded(self, replica_id: ReplicaId) -> None: ...

    def on_fault(self, replica_id: ReplicaId) -> None: ...

    def on_unloaded(self, replica_id: ReplicaId) -> None: ...


@dataclass(frozen=True, slots=True)
class LinkDelays:
    """Milliseconds a message takes; one in `late_one_in` takes up to `late_ms` (0: none does)."""

    usual_ms: float = 0.2
    late_ms: float = 0.0
    late_one_in: int = 0


@dataclass(slots=True)
class _Way:
    """One direction of the link."""

    events: EventQueue
    delays: LinkDelays
    rng: random.Random
    last_ms: float = 0.0

    def send(self, action: Callable[[], None], work_ms: float = 0.0) -> None:
        delay_ms = self.delays.usual_ms + work_ms
        if self.delays.late_one_in and self.rng.randrange(self.delays.late_one_in) == 0:
            delay_ms += self.rng.random() * self.delays.late_ms
        self.last_ms = max(self.last_ms, self.events.at_ms + delay_ms)
        self.events.at(self.last_ms, action)


@dataclass(slots=True)
class PaperWorker:
    """One machine. `make_engine` gives it an engine for a model; `load_ms` says how long it takes.

    `break_next_loads`: so many of the next loads will fail.
    """

    id: WorkerId
    ears: WorkerEars
    events: EventQueue
    rng: random.Random
    make_engine: Callable[[ModelId], PaperEngine]
    load_ms: Callable[[ModelId], float]
    delays: LinkDelays = LinkDelays()
    break_next_loads: int = 0
    slowness: float = 1.0
    alive: bool = True
    session: int = 0
    _engines: dict[ReplicaId, PaperEngine] = field(default_factory=dict)
    _loading: set[ReplicaId] = field(default_factory=set)
    _wake_numbers: dict[ReplicaId, int] = field(default_factory=dict)
    _wakes: int = 0
    _down: _Way = field(init=False)
    _up: _Way = field(init=False)

    def __post_init__(self) -> None:
        self._down = _Way(self.events, self.delays, self.rng)
        self._up = _Way(self.events, self.delays, self.rng)

    # --- the scheduler's side -------------------------------------------------------------------
    def admit(self, replica_id: ReplicaId, sequence: PaperSequence) -> None:
        self._command(lambda: self._admit(replica_id, sequence))

    def park(self, replica_id: ReplicaId, request_id: RequestId, epoch: Epoch) -> None:
        self._command(lambda: self._take_out(replica_id, request_id, epoch, parked=True))

    def cancel(self, replica_id: ReplicaId, request_id: RequestId, epoch: Epoch) -> None:
        self._command(lambda: self._take_out(replica_id, request_id, epoch, parked=False))

    def load(self, replica_id: ReplicaId, model_id: ModelId) -> None:
        self._command(lambda: self._load(replica_id, model_id))

    def unload(self, replica_id: ReplicaId) -> None:
        self._command(lambda: self._unload(replica_id))

    def notice_loss(self) -> None:
        """The platform has noticed that this worker is gone: the old session's words are void."""
        self.session += 1

    # --- what happens to it ---------------------------------------------------------------------
    def die(self) -> None:
        """Everything in it is gone; the platform does not know yet."""
        self.alive = False
        self._engines.clear()
        self._loading.clear()
        self._wake_numbers.clear()

    def revive(self) -> None:
        self.alive = True

    def slow_down(self, slowness: float) -> None:
        self.slowness = slowness
        for replica_id, engine in self._engines.items():
            engine.slow_down(slowness, self.events.at_ms)
            self._plan(replica_id, engine)

    def break_engine(self) -> None:
        """One of its engines crashes, if it has one."""
        replica_id = next(iter(self._engines), None)
        if replica_id is not None:
            del self._engines[replica_id]
            self._say(lambda: self.ears.on_fault(replica_id))

    # --- inside ---------------------------------------------------------------------------------
    def _command(self, action: Callable[[], None]) -> None:
        session = self.session

        def arrive() -> None:
            if self.alive and self.session == session:
                action()

        self._down.send(arrive)

    def _say(self, message: Callable[[], None], work_ms: float = 0.0) -> None:
        session = self.session

        def arrive() -> None:
            if self.session == session:
                message()

        self._up.send(arrive, work_ms)

    def _admit(self, replica_id: ReplicaId, sequence: PaperSequence) -> None:
        engine = self._engines.get(replica_id)
        if engine is not None:  # else it crashed, and the platform will hear of that
            engine.admit(sequence, self.events.at_ms)
            self._plan(replica_id, engine)

    def _take_out(
        self, replica_id: ReplicaId, request_id: RequestId, epoch: Epoch, *, parked: bool
    ) -> None:
        engine = self._engines.get(replica_id)
        if engine is None:
            return
        progress = engine.take_out(request_id, epoch, self.events.at_ms)
        self._plan(replica_id, engine)
        if progress is None or not parked:
            return  # its end is on its way, or nobody listens any more
        if progress.count:
            self._say(lambda: self.ears.on_progress(replica_id, [progress]))
        if not progress.finished:
            park_ms = engine.cost.park_ms * engine.slowness
            self._say(lambda: self.ears.on_parked(replica_id, request_id, epoch), park_ms)

    def _load(self, replica_id: ReplicaId, model_id: ModelId) -> None:
        self._loading.add(replica_id)
        session = self.session

        def done() -> None:
            if replica_id not in self._loading or self.session != session:
                return  # it died meanwhile, or the load is not wanted any more
            self._loading.remove(replica_id)
            if self.break_next_loads:
                self.break_next_loads -= 1
                self._say(lambda: self.ears.on_fault(replica_id))
                return
            self.install(replica_id, model_id)
            self._say(lambda: self.ears.on_loaded(replica_id))

        self.events.after(self.load_ms(model_id) * self.slowness, done)

    def install(self, replica_id: ReplicaId, model_id: ModelId) -> None:
        """Have the model loaded, at once."""
        require(replica_id not in self._engines, "a replica was loaded twice")
        engine = self.make_engine(model_id)
        engine.slow_down(self.slowness, self.events.at_ms)
        self._engines[replica_id] = engine

    def _unload(self, replica_id: ReplicaId) -> None:
        self._loading.discard(replica_id)
        engine = self._engines.pop(replica_id, None)
        require(engine is None or len(engine) == 0, "a busy replica was unloaded")
        self._say(lambda: self.ears.on_unloaded(replica_id))

    def _plan(self, replica_id: ReplicaId, engine: PaperEngine) -> None:
        """Wake up when the engine has something to say; an older plan is void."""
        self._wakes += 1
        number = self._wake_numbers[replica_id] = self._wakes
        due_ms = engine.next_due_ms()
        if due_ms is not None:
            self.events.at(due_ms, lambda: self._wake(replica_id, engine, number))

    def _wake(self, replica_id: ReplicaId, engine: PaperEngine, number: int) -> None:
        if self._wake_numbers.get(replica_id) != number or replica_id not in self._engines:
            return
        reports = engine.due(self.events.at_ms)
        if reports:
            self._say(lambda: self.ears.on_progress(replica_id, reports))
        self._plan(replica_id, engine)
