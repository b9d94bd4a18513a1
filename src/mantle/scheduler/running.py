"""What is on the accelerators now? Attempts in their slots, and what is left of each replica.

Invariant: a replica's slots and KV tokens are never over-committed; an attempt's share is given
back exactly once, when the engine has let go of it.
"""

from dataclasses import dataclass

from mantle.core.ids import ModelId, ReplicaId, RequestId
from mantle.core.request import Attempt, Request
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.queues import Waiting
from mantle.scheduler.room import Room


@dataclass(slots=True)
class Running:
    """One attempt in its slot: `charged_cost` by estimate, `produced_cost` what it really got."""

    request: Request
    attempt: Attempt
    waiting: Waiting
    kv_tokens: int
    started_ms: float
    estimated_output_tokens: int
    by_floor: bool = False  # runs because its lane was behind its floor
    produced_tokens: int = 0  # by this attempt
    charged_cost: float = 0.0
    produced_cost: float = 0.0

    @property
    def can_be_parked(self) -> bool:
        """False where giving way would lose work that can not be replayed."""
        return not self.request.prompt_logprobs

    @property
    def may_be_parked(self) -> bool:
        """False where giving way would undo the promise of a floor, too."""
        return self.can_be_parked and not self.by_floor


class Residents:
    """All replicas and the attempts on them."""

    def __init__(self) -> None:
        self._replicas: dict[ReplicaId, ReplicaCapacity] = {}
        self._room: dict[ModelId, Room] = {}
        self._running: dict[RequestId, Running] = {}

    def add_replica(self, capacity: ReplicaCapacity) -> None:
        assert capacity.replica_id not in self._replicas, "a replica is ready once"
        self._replicas[capacity.replica_id] = capacity
        room = self._room.get(capacity.model_id)
        if room is None:
            room = self._room[capacity.model_id] = Room()
        room.add(capacity)

    def drop_replica(self, replica_id: ReplicaId) -> list[Running]:
        """Forget a replica; returns the attempts that were on it, oldest first."""
        capacity = self._replicas.pop(replica_id, None)
        if capacity is None:
            return []
        room = self._room[capacity.model_id]
        room.drop(replica_id)
        if not room:
            del self._room[capacity.model_id]
        lost = [self._running.pop(request_id) for request_id in capacity.running]
        return sorted(lost, key=lambda running: running.waiting.arrival)

    def replica(self, replica_id: ReplicaId) -> ReplicaCapacity | None:
        return self._replicas.get(replica_id)

    def replicas(self) -> list[ReplicaCapacity]:
        return list(self._replicas.values())

    def serves(self, model_id: ModelId) -> bool:
        """True when some replica of the model takes work, now or once a slot is free."""
        room = self._room.get(model_id)
        return room is not None and room.takes_work()

    def room_for(self, model_id: ModelId, tokens: int) -> ReplicaCapacity | None:
        """A replica of this model with a slot and KV memory for so many tokens; None: all full."""
        room = self._room.get(model_id)
        return None if room is None else room.for_tokens(tokens)

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
        self._room[capacity.model_id].has_more(capacity.replica_id)
        return running

    def find(self, request_id: RequestId) -> Running | None:
        return self._running.get(request_id)

    def all_running(self) -> list[Running]:
        return list(self._running.values())

    def __len__(self) -> int:
        return len(self._running)
