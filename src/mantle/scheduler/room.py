"""Which replica has room? The replicas of one model, by free slots and by free KV memory.

Invariant: a replica that fits is found whenever there is one, in O(log replicas) amortised; the one
with most free slots is preferred, so that load spreads.
"""

import math

from mantle.core.ids import ReplicaId
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.fairness.lazy_heap import LazyMinHeap


class Room:
    """An index over capacities that others change; `has_more` must be told of each release."""

    def __init__(self) -> None:
        self._replicas: dict[ReplicaId, ReplicaCapacity] = {}
        self._by_slots: LazyMinHeap[ReplicaId] = LazyMinHeap(self._slots_taken)
        self._by_kv: LazyMinHeap[ReplicaId] = LazyMinHeap(self._kv_taken)

    def __len__(self) -> int:
        return len(self._replicas)

    def add(self, replica: ReplicaCapacity) -> None:
        self._replicas[replica.replica_id] = replica
        self.has_more(replica.replica_id)

    def drop(self, replica_id: ReplicaId) -> None:
        self._by_slots.discard(replica_id)
        self._by_kv.discard(replica_id)
        del self._replicas[replica_id]

    def has_more(self, replica_id: ReplicaId) -> None:
        """The replica has gained room. (Room that is taken is noticed when it is looked at.)"""
        self._by_slots.add(replica_id)
        self._by_kv.add(replica_id)

    def for_tokens(self, tokens: int) -> ReplicaCapacity | None:
        """A replica where a sequence of so many tokens fits; None when there is none."""
        replica = self._least(self._by_slots)
        if replica is None or replica.slots_free == 0:
            return None
        if not replica.fits(replica.kv_need(tokens)):
            replica = self._least(self._by_kv)
        return replica if replica and replica.fits(replica.kv_need(tokens)) else None

    def takes_work(self) -> bool:
        """True when some replica takes work, now or once a slot is free."""
        return any(not replica.draining for replica in self._replicas.values())

    def _least(self, heap: LazyMinHeap[ReplicaId]) -> ReplicaCapacity | None:
        replica_id = heap.least()
        return None if replica_id is None else self._replicas[replica_id]

    def _slots_taken(self, replica_id: ReplicaId) -> float:
        return -self._replicas[replica_id].slots_free

    def _kv_taken(self, replica_id: ReplicaId) -> float:
        replica = self._replicas[replica_id]
        return -replica.kv_tokens_free if replica.slots_free else math.inf
