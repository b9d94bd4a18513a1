"""What is on the accelerators now? Attempts in their slots, and what is left of each replica.

Invariant: a replica's slots and KV tokens are never over-committed; an attempt's share is given
back exactly once, when the engine has let go of it.
"""

from dataclasses import dataclass, field

from mantle.core.ids import ModelId, ReplicaId, RequestId
from mantle.core.request import Attempt, Request
from mantle.scheduler.queues import Waiting


@dataclass(slots=True)
class Running:
    """One attempt in its slot. `charged_cost` is what its tenant and lane were charged so far."""

    request: Request
    attempt: Attempt
    waiting: Waiting
    kv_tokens: int
    started_ms: float
    estimated_output_tokens: int
    by_floor: bool = False  # runs because its lane was behind its floor
    produced_tokens: int = 0  # by this attempt
    charged_cost: float = 0.0

    @property
    def may_be_parked(self) -> bool:
        """False where giving way would undo a promise, or lose work that can not be replayed."""
        return not self.by_floor and not self.request.prompt_logprobs


@dataclass(slots=True)
class ReplicaCapacity:
    """What one ready replica can hold."""

    replica_id: ReplicaId
    model_id: ModelId
    slots: int
    kv_tokens: int
    window_tokens: int
    running: set[RequestId] = field(default_factory=set)
    kv_tokens_taken: int = 0
    draining: bool = False

    @property
    def slots_free(self) -> int:
        return 0 if self.draining else self.slots - len(self.running)

    def kv_need(self, tokens: int) -> int:
        """KV tokens that a sequence of so many tokens takes here."""
        return min(tokens, self.window_tokens)

    def fits(self, kv_tokens: int) -> bool:
        return self.slots_free > 0 and self.kv_tokens_taken + kv_tokens <= self.kv_tokens


class Residents:
    """All replicas and the attempts on them."""

    def __init__(self) -> None:
        self._replicas: dict[ReplicaId, ReplicaCapacity] = {}
        self._of_model: dict[ModelId, list[ReplicaCapacity]] = {}
        self._running: dict[RequestId, Running] = {}

    def add_replica(self, capacity: ReplicaCapacity) -> None:
        assert capacity.replica_id not in self._replicas, "a replica is ready once"
        self._replicas[capacity.replica_id] = capacity
        self._of_model.setdefault(capacity.model_id, []).append(capacity)

    def drop_replica(self, replica_id: ReplicaId) -> list[Running]:
        """Forget a replica; returns the attempts that were on it, oldest first."""
        capacity = self._replicas.pop(replica_id, None)
        if capacity is None:
            return []
        siblings = self._of_model[capacity.model_id]
        siblings.remove(capacity)
        if not siblings:
            del self._of_model[capacity.model_id]
        lost = [self._running.pop(request_id) for request_id in capacity.running]
        return sorted(lost, key=lambda running: running.waiting.arrival)

    def replica(self, replica_id: ReplicaId) -> ReplicaCapacity | None:
        return self._replicas.get(replica_id)

    def replicas(self) -> list[ReplicaCapacity]:
        return list(self._replicas.values())

    def serves(self, model_id: ModelId) -> bool:
        """True when some replica of the model takes work, now or once a slot is free."""
        return any(not r.draining for r in self._of_model.get(model_id, ()))

    def roomiest(self, model_id: ModelId) -> ReplicaCapacity | None:
        """The replica of this model with the most free slots; None when all are full."""
        free = [r for r in self._of_model.get(model_id, ()) if r.slots_free > 0]
        return max(free, key=lambda r: (r.slots_free, r.replica_id)) if free else None

    def start(self, running: Running) -> None:
        capacity = self._replicas[running.attempt.replica_id]
        assert capacity.fits(running.kv_tokens), "a replica must never be over-committed"
        capacity.running.add(running.request.id)
        capacity.kv_tokens_taken += running.kv_tokens
        self._running[running.request.id] = running

    def release(self, request_id: RequestId) -> Running | None:
        """The engine has let go of the attempt; None when it was not running."""
        running = self._running.pop(request_id, None)
        if running is None:
            return None
        capacity = self._replicas[running.attempt.replica_id]
        capacity.running.remove(request_id)
        capacity.kv_tokens_taken -= running.kv_tokens
        return running

    def find(self, request_id: RequestId) -> Running | None:
        return self._running.get(request_id)

    def all_running(self) -> list[Running]:
        return list(self._running.values())

    def __len__(self) -> int:
        return len(self._running)
