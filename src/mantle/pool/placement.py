"""Which model should be where? Pure placement: events in, loads and unloads out.

Invariant: on each worker the sizes of all replicas that are loaded, loading or unloading never
exceed its memory budget. A running sequence is never cut off by a swap: a replica is drained
first, and drained only when somebody has waited long enough for its memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from mantle.core.ids import ModelId, ReplicaId, WorkerId
from mantle.pool.port import Demand, ResidencyState
from mantle.pool.replica import Replica, ReplicaState


class PlacementRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times that keep swaps from thrashing and from starving."""

    residency_s_min: float = 2.0
    swap_wait_s_max: float = 5.0
    load_s_max: float = 120.0
    load_retry_s_min: float = 5.0


@dataclass(frozen=True, slots=True)
class LoadReplica:
    """Start loading; must be answered by `loaded` or `load_failed`."""

    replica_id: ReplicaId
    worker_id: WorkerId
    model_id: ModelId


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """No new work for it."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class UnloadReplica:
    """Drop it; must be answered by `unloaded`."""

    replica_id: ReplicaId
    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """The model can not be loaded now: tell whoever waits."""

    model_id: ModelId
    reason: str
    retry_after_ms: float


PoolEffect = LoadReplica | DrainReplica | UnloadReplica | RefuseModel


@dataclass(slots=True)
class _Failure:
    reason: str
    at_ms: float


@dataclass(slots=True)
class Placement:
    """Owner of the memory ledger. `need_bytes` says what a replica of a model will take."""

    rules: PlacementRules
    need_bytes: Callable[[ModelId], int]
    _budgets: dict[WorkerId, int] = field(default_factory=dict)
    _replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    _failures: dict[ModelId, _Failure] = field(default_factory=dict)
    _loads: int = 0

    # --- events ---------------------------------------------------------------------------------
    def worker_up(self, worker_id: WorkerId, budget_bytes: int) -> None:
        self._budgets[worker_id] = budget_bytes

    def worker_down(self, worker_id: WorkerId) -> list[Replica]:
        """The worker is gone with all it held; returns its replicas."""
        self._budgets.pop(worker_id, None)
        lost = [r for r in self._replicas.values() if r.worker_id == worker_id]
        for replica in lost:
            del self._replicas[replica.id]
        return lost

    def loaded(self, replica_id: ReplicaId, size_bytes: int, now_ms: float) -> Replica | None:
        """The load is done and measured; None when it is not awaited any more."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.is_leaving:
            return None
        replica.state = ReplicaState.READY
        replica.size_bytes = max(replica.size_bytes, size_bytes)
        replica.since_ms = now_ms
        self._failures.pop(replica.model_id, None)
        return replica

    def load_failed(self, replica_id: ReplicaId, reason: str, now_ms: float) -> list[PoolEffect]:
        """A load, or a loaded replica, broke. Its memory is free again."""
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return []
        self._failures[replica.model_id] = _Failure(reason, now_ms)
        return [self._refusal(replica.model_id, now_ms)]

    def unloaded(self, replica_id: ReplicaId) -> None:
        self._replicas.pop(replica_id, None)

    # --- the decision ---------------------------------------------------------------------------
    def decide(
        self,
        demand: Mapping[ModelId, Demand],
        running: Mapping[ReplicaId, int],
        now_ms: float,
    ) -> list[PoolEffect]:
        """What to load and drop, for what waits (`demand`) and runs (sequences a replica)."""
        effects: list[PoolEffect] = []
        for replica in self._replicas.values():
            if running.get(replica.id, 0) or replica.model_id in demand:
                replica.last_used_ms = now_ms
        effects += self._overdue_loads(now_ms)
        for model_id in sorted(demand, key=lambda m: -demand[m].oldest_wait_ms):
            if not self._serves(model_id):
                effects += self._make_resident(model_id, demand, running, now_ms)
        effects += self._finish_drains(running)
        return effects

    # --- answers --------------------------------------------------------------------------------
    def residency(self, model_id: ModelId) -> ResidencyState:
        states = {r.state for r in self._replicas.values() if r.model_id == model_id}
        if ReplicaState.READY in states:
            return ResidencyState.READY
        if ReplicaState.LOADING in states:
            return ResidencyState.LOADING
        return ResidencyState.FAILED if model_id in self._failures else ResidencyState.UNLOADED

    def replica(self, replica_id: ReplicaId) -> Replica | None:
        return self._replicas.get(replica_id)

    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    def free_bytes(self, worker_id: WorkerId) -> int:
        """What the ledger has left on a worker."""
        taken = sum(r.size_bytes for r in self._replicas.values() if r.worker_id == worker_id)
        return self._budgets[worker_id] - taken

    def failure(self, model_id: ModelId) -> str | None:
        failure = self._failures.get(model_id)
        return None if failure is None else failure.reason

    # --- inside ---------------------------------------------------------------------------------
    def _serves(self, model_id: ModelId) -> bool:
        serving = (ReplicaState.READY, ReplicaState.LOADING)
        return any(r.model_id == model_id and r.state in serving for r in self._replicas.values())

    def _make_resident(
        self,
        model_id: ModelId,
        demand: Mapping[ModelId, Demand],
        running: Mapping[ReplicaId, int],
        now_ms: float,
    ) -> list[PoolEffect]:
        failure = self._failures.get(model_id)
        if failure and now_ms - failure.at_ms < self.rules.load_retry_s_min * 1_000:
            return [self._refusal(model_id, now_ms)]
        need = self.need_bytes(model_id)
        if not self._budgets:
            return []  # all workers are down; they are being restarted
        if need > max(self._budgets.values()):
            reason = f"the model needs {need >> 20} MiB, more than any worker's memory budget"
            self._failures[model_id] = _Failure(reason, now_ms)
            return [self._refusal(model_id, now_ms)]
        worker_id = max(self._budgets, key=self.free_bytes)
        if self.free_bytes(worker_id) >= need:
            return [self._start_load(model_id, worker_id, now_ms)]
        return self._make_room(need, demand[model_id], demand, running, now_ms)

    def _start_load(self, model_id: ModelId, worker_id: WorkerId, now_ms: float) -> LoadReplica:
        self._loads += 1
        replica_id = ReplicaId(f"{model_id}#{self._loads}")
        self._replicas[replica_id] = Replica(
            replica_id, model_id, worker_id, self.need_bytes(model_id), now_ms, now_ms
        )
        return LoadReplica(replica_id, worker_id, model_id)

    def _make_room(
        self,
        need: int,
        wanted: Demand,
        demand: Mapping[ModelId, Demand],
        running: Mapping[ReplicaId, int],
        now_ms: float,
    ) -> list[PoolEffect]:
        """Drain one worker's replicas, the longest unused first, until `need` would fit."""
        patient = wanted.oldest_wait_ms < self.rules.swap_wait_s_max * 1_000
        for worker_id, budget in self._budgets.items():
            if budget < need:
                continue
            here = [r for r in self._replicas.values() if r.worker_id == worker_id]
            leaving = [r for r in here if r.is_leaving]
            room = self.free_bytes(worker_id) + sum(r.size_bytes for r in leaving)
            victims: list[Replica] = []
            for replica in sorted(here, key=lambda r: (running.get(r.id, 0) > 0, r.last_used_ms)):
                if room >= need:
                    break
                busy = running.get(replica.id, 0) > 0 or replica.model_id in demand
                if replica.may_leave(now_ms, self.rules.residency_s_min * 1_000) and not (
                    busy and patient
                ):
                    victims.append(replica)
                    room += replica.size_bytes
            if room >= need:
                for victim in victims:
                    victim.state = ReplicaState.DRAINING
                return [DrainReplica(victim.id) for victim in victims]
        return []

    def _finish_drains(self, running: Mapping[ReplicaId, int]) -> list[PoolEffect]:
        effects: list[PoolEffect] = []
        for replica in self._replicas.values():
            if replica.state is ReplicaState.DRAINING and not running.get(replica.id, 0):
                replica.state = ReplicaState.UNLOADING
                effects.append(UnloadReplica(replica.id, replica.worker_id))
        return effects

    def _overdue_loads(self, now_ms: float) -> list[PoolEffect]:
        effects: list[PoolEffect] = []
        for replica in list(self._replicas.values()):
            loading = replica.state is ReplicaState.LOADING
            if loading and now_ms - replica.since_ms > self.rules.load_s_max * 1_000:
                replica.state = ReplicaState.UNLOADING  # its memory is taken until `unloaded`
                effects.append(UnloadReplica(replica.id, replica.worker_id))
                self._failures[replica.model_id] = _Failure("loading took too long", now_ms)
                effects.append(self._refusal(replica.model_id, now_ms))
        return effects

    def _refusal(self, model_id: ModelId, now_ms: float) -> RefuseModel:
        failure = self._failures[model_id]
        retry_after_ms = failure.at_ms + self.rules.load_retry_s_min * 1_000 - now_ms
        return RefuseModel(model_id, failure.reason, max(1_000.0, retry_after_ms))
