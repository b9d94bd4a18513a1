"""Which of a tenant's own requests is next? The one that would expire first.

Without deadlines every request of a queue expires the same time after it arrived, so the order is
first in, first out; a deadline moves its request forward (earliest deadline first). Invariant: a
request that comes back after a lost attempt keeps its place.
"""

import heapq

from mantle.core.ids import RequestId


class DeadlineFirstQueue:
    """Request ids ordered by (expiry, arrival). Removal anywhere is O(1), paid for on popping."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RequestId]] = []
        self._live: dict[RequestId, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def push(self, request_id: RequestId, *, expires_ms: float, arrival: int) -> None:
        """Add a request; `arrival` is a number that grows with each new request."""
        self._live[request_id] = (expires_ms, arrival)
        heapq.heappush(self._heap, (expires_ms, arrival, request_id))

    def peek(self) -> RequestId | None:
        while self._heap:
            expires_ms, arrival, request_id = self._heap[0]
            if self._live.get(request_id) == (expires_ms, arrival):
                return request_id
            heapq.heappop(self._heap)
        return None

    def remove(self, request_id: RequestId) -> None:
        del self._live[request_id]
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._live):
            self._heap = [(e, a, r) for r, (e, a) in self._live.items()]
            heapq.heapify(self._heap)

    def position(self, request_id: RequestId) -> int:
        """How many requests of this queue go first (O(n): for people, not for decisions)."""
        key = self._live[request_id]
        return sum(1 for other in self._live.values() if other < key)
