"""What does a worker do next? Commands in, events out, one engine step at a time.

Invariant: no driver exception leaves the loop. A sequence that cannot be admitted gets an output
with `error`; a driver that fails within a step takes its own replica down, with an output for each
of its residents and a `LoadFault`, and no other replica.
"""

import logging
import queue
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from mantle.core.clock import Clock
from mantle.core.errors import AttemptFailed, EngineFailed
from mantle.engine.parked_kv import ParkedStore, ParkingCosts
from mantle.engine.port import (
    Admit,
    Cancel,
    Command,
    Driver,
    EngineSettings,
    Forget,
    Load,
    Loaded,
    LoadFault,
    LoadSpec,
    Park,
    Parked,
    Resume,
    SequenceOutput,
    SequenceSpec,
    Stepped,
    StepReport,
    Unload,
    Unloaded,
    WorkerEvent,
)
from mantle.engine.step_budget import StepPlan

logger = logging.getLogger(__name__)

_PREFILL_TOKENS_TELLING = 32
"""A step with fewer prompt tokens says little about the cost of prefill."""

Spawn = Callable[[Callable[[], None]], None]
Result = TypeVar("Result")


@dataclass(slots=True)
class _Replica:
    """A loaded model; `decodes` says of each resident whether its first token is out."""

    driver: Driver
    settings: EngineSettings
    decodes: dict[int, bool] = field(default_factory=dict)
    urgent: set[int] = field(default_factory=set)  # whose first token is not out
    costs: ParkingCosts = field(default_factory=ParkingCosts)
    parked: ParkedStore = field(init=False)
    plan: StepPlan = field(init=False)

    def __post_init__(self) -> None:
        self.parked = ParkedStore(self.settings.parked_kv_mib << 20)
        self.plan = StepPlan(self.settings)

    def leaves(self, sequence_id: int) -> bool:
        """The sequence is no longer resident; False when it was not."""
        self.urgent.discard(sequence_id)
        return self.decodes.pop(sequence_id, None) is not None


@dataclass(frozen=True, slots=True)
class _LoadResult:
    replica_id: str
    settings: EngineSettings
    driver: Driver | None
    event: Loaded | LoadFault


class StepLoop:
    """The worker's heart, without process or socket. Single-threaded but for `spawn` and `busy_ms`.

    `spawn(job)` runs a load aside (the worker's threads) so that the other replicas go on; the
    default runs it at once. `adopt_loaded` takes over what got done.
    """

    def __init__(
        self,
        make_driver: Callable[[str], Driver],
        clock: Clock,
        *,
        spawn: Spawn = lambda job: job(),
    ) -> None:
        self._make_driver = make_driver
        self._clock = clock
        self._spawn = spawn
        self._replicas: dict[str, _Replica] = {}
        self._loading: dict[str, bool] = {}  # replica id → still wanted
        self._load_results: queue.SimpleQueue[_LoadResult] = queue.SimpleQueue()
        self._busy_since_ms: float | None = None
        self._stepping: _Replica | None = None  # its step may be interrupted

    def interrupt_for(self, command: Command) -> None:
        """End the step in progress for an urgent sequence. The reader's thread may call it."""
        if not isinstance(command, Admit | Resume) or not command.sequence.urgent:
            return
        replica = self._stepping
        if replica is not None and replica.plan.may_interrupt(self.busy_ms(), self._clock.now_ms()):
            replica.driver.interrupt()

    def has_work(self) -> bool:
        """True when a step would do something."""
        return any(replica.driver.has_work() for replica in self._replicas.values())

    def busy_ms(self) -> float:
        """Age of the driver call in progress (0: none). May be read from another thread."""
        since_ms = self._busy_since_ms
        return 0.0 if since_ms is None else max(self._clock.now_ms() - since_ms, 0.001)

    def handle(self, command: Command) -> list[WorkerEvent]:
        """Do what the dispatcher says; what there is to answer at once."""
        match command:
            case Load():
                return self._load(command)
            case Unload():
                return self._unload(command.replica_id)
            case Admit():
                return self._admit(command.replica_id, command.sequence, None)
            case Resume():
                return self._admit(command.replica_id, command.sequence, command.parked_id)
            case Cancel():
                return self._cancel(command)
            case Park():
                return self._park(command)
            case Forget():
                return self._forget(command)
        assert_never(command)

    def step(self) -> list[WorkerEvent]:
        """One step: of a replica where an urgent sequence waits, else of the next in turn."""
        for replica_id, replica in self._replicas.items():
            if replica.urgent:
                return self._step(replica_id, replica)
        for replica_id, replica in self._replicas.items():
            if replica.driver.has_work():
                del self._replicas[replica_id]  # to the end of the row
                self._replicas[replica_id] = replica
                return self._step(replica_id, replica)
        return []

    def adopt_loaded(self) -> list[WorkerEvent]:
        """Take over the replicas whose load ended since the last call."""
        events: list[WorkerEvent] = []
        while not self._load_results.empty():
            result = self._load_results.get()
            is_wanted = self._loading.pop(result.replica_id)
            if is_wanted:
                events.append(result.event)
                if result.driver is not None:
                    self._replicas[result.replica_id] = _Replica(result.driver, result.settings)
            else:
                if result.driver is not None:
                    result.driver.close()
                events.append(Unloaded(result.replica_id))
        return events

    def close(self) -> None:
        """Drop everything. A load still in progress is left to the end of the process."""
        for replica in self._replicas.values():
            replica.driver.close()
        self._replicas.clear()

    # --- loading --------------------------------------------------------------------------------
    def _load(self, command: Load) -> list[WorkerEvent]:
        replica_id = command.replica_id
        if replica_id in self._replicas or replica_id in self._loading:
            return [LoadFault(replica_id, "the replica is already there")]
        self._loading[replica_id] = True
        self._spawn(lambda: self._load_results.put(self._load_now(replica_id, command.spec)))
        return self.adopt_loaded()

    def _load_now(self, replica_id: str, spec: LoadSpec) -> _LoadResult:
        """Runs aside: touches nothing of the loop."""
        event: Loaded | LoadFault
        driver: Driver | None = None
        try:
            driver = self._make_driver(spec.driver)
            event = Loaded(replica_id, driver.load(spec))
        except AttemptFailed as fault:
            driver, event = None, LoadFault(replica_id, fault.message)
        except Exception as fault:  # the driver's edge: a broken engine must not end the worker
            _log_fault("load", replica_id, fault)
            message = f"loading failed ({type(fault).__name__})"
            driver, event = None, LoadFault(replica_id, message)
        return _LoadResult(replica_id, spec.settings, driver, event)

    def _unload(self, replica_id: str) -> list[WorkerEvent]:
        if replica_id in self._loading:
            self._loading[replica_id] = False
            return []  # answered when the load ends
        replica = self._replicas.pop(replica_id, None)
        if replica is not None:
            replica.driver.close()
        return [Unloaded(replica_id)]

    # --- sequences ------------------------------------------------------------------------------
    def _admit(
        self, replica_id: str, sequence: SequenceSpec, parked_id: int | None
    ) -> list[WorkerEvent]:
        replica = self._replicas.get(replica_id)
        if replica is None:
            return [_refusal(replica_id, sequence, "the replica is not loaded")]
        parked = None if parked_id is None else replica.parked.take(parked_id)
        try:
            if parked is None:
                replica.driver.admit(sequence)
            else:
                self._timed(lambda: replica.driver.resume(sequence, parked))
        except EngineFailed as fault:
            return [_refusal(replica_id, sequence, fault.message)]
        except Exception as fault:  # the driver's edge
            _log_fault("admit", replica_id, fault)
            refusal = f"engine fault ({type(fault).__name__})"
            return [
                _refusal(replica_id, sequence, refusal),
                *self._drop(replica_id, replica, sequence.sequence_id),
            ]
        replica.decodes[sequence.sequence_id] = False
        if sequence.urgent:
            replica.urgent.add(sequence.sequence_id)
        return []

    def _cancel(self, command: Cancel) -> list[WorkerEvent]:
        replica = self._replicas.get(command.replica_id)
        if replica is not None and replica.leaves(command.sequence_id):
            return self._drop(command.replica_id, replica, command.sequence_id)
        return []

    def _drop(self, replica_id: str, replica: _Replica, sequence_id: int) -> list[WorkerEvent]:
        """Let the driver forget a sequence, which may be resident, in half or not at all."""
        try:
            replica.driver.cancel(sequence_id)
        except Exception as fault:  # the driver's edge
            return self._fail(replica_id, replica, fault)
        return []

    def _park(self, command: Park) -> list[WorkerEvent]:
        """Silent for a sequence that is not resident: its last output is already on its way."""
        replica = self._replicas.get(command.replica_id)
        if replica is None or command.sequence_id not in replica.decodes:
            return []
        keep_kv = replica.costs.keeping_is_cheaper()
        started_ms = self._clock.now_ms()
        try:
            parked = self._timed(lambda: replica.driver.park(command.sequence_id, keep_kv=keep_kv))
        except Exception as fault:  # the driver's edge
            return self._fail(command.replica_id, replica, fault)
        replica.leaves(command.sequence_id)
        if parked is None:
            return []
        if parked.kv_tokens:
            took_ms = self._clock.now_ms() - started_ms
            replica.costs.learn_copy(parked.kv_tokens, took_ms)
        kv_bytes = replica.parked.keep(parked)
        return [Parked(command.replica_id, command.sequence_id, kv_bytes)]

    def _forget(self, command: Forget) -> list[WorkerEvent]:
        replica = self._replicas.get(command.replica_id)
        if replica is not None:
            replica.parked.forget(command.parked_id)
        return []

    # --- steps ----------------------------------------------------------------------------------
    def _step(self, replica_id: str, replica: _Replica) -> list[WorkerEvent]:
        budget = replica.plan.budget(
            something_decodes=any(replica.decodes.values()),
            urgent_waits=bool(replica.urgent),
            now_ms=self._clock.now_ms(),
        )
        self._stepping = None if budget.urgent_only else replica
        try:
            report = self._timed(lambda: replica.driver.step(budget))
        except Exception as fault:  # the driver's edge
            return self._fail(replica_id, replica, fault)
        finally:
            self._stepping = None
        replica.plan.learn(report, self._clock.now_ms())
        if report.prefill_tokens >= _PREFILL_TOKENS_TELLING:
            replica.costs.learn_prefill(report.prefill_tokens, report.step_ms)
        for output in report.outputs:
            if output.finish is not None or output.error is not None:
                replica.leaves(output.sequence_id)
            else:
                replica.urgent.discard(output.sequence_id)
                replica.decodes[output.sequence_id] = True
        return [Stepped(replica_id, report)]

    def _fail(self, replica_id: str, replica: _Replica, fault: Exception) -> list[WorkerEvent]:
        """The engine is in an unknown state: everything on this replica ends here."""
        _log_fault("step", replica_id, fault)
        message = f"the engine failed ({type(fault).__name__})"
        outputs = [SequenceOutput(one, 0, [], error=message) for one in replica.decodes]
        del self._replicas[replica_id]
        try:
            replica.driver.close()
        except Exception as close_fault:  # the driver's edge
            _log_fault("close", replica_id, close_fault)
        return [Stepped(replica_id, StepReport(outputs)), LoadFault(replica_id, message)]

    def _timed(self, call: Callable[[], Result]) -> Result:
        self._busy_since_ms = self._clock.now_ms()
        try:
            return call()
        finally:
            self._busy_since_ms = None


def _refusal(replica_id: str, sequence: SequenceSpec, message: str) -> Stepped:
    first_index = len(sequence.resume_tokens)
    output = SequenceOutput(sequence.sequence_id, first_index, [], error=message)
    return Stepped(replica_id, StepReport([output]))


def _log_fault(where: str, replica_id: str, fault: Exception) -> None:
    """Type and place only: the text of a foreign exception may quote a prompt."""
    place = "".join(traceback.format_tb(fault.__traceback__))
    logger.error("%s of replica %s failed: %s\n%s", where, replica_id, type(fault).__name__, place)
