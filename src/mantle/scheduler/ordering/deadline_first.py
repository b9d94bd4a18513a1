"""Which of a tenant's own requests is next? The one that would expire first.

Without deadlines every request of a queue expires the same time after it arrived, so the order is
first in, first out; a deadline moves its request forward (earliest deadline first). Invariant: a
request that comes back after a lost attempt keeps its place.
"""

from bisect import bisect_left
from collections.abc import Iterator

from mantle.core.ids import RequestId

_Entry = tuple[float, int, RequestId]


class DeadlineFirstQueue:
    """Request ids ordered by (expiry, arrival): a sorted list that is used up from the front.

    Everything is O(log n) amortised, save that what comes or goes in the middle shifts what is
    behind it (a copy of 8 bytes each).
    """

    def __init__(self) -> None:
        self._order: list[_Entry] = []
        self._first = 0  # entries before it have left
        self._entry: dict[RequestId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entry)

    def push(self, request_id: RequestId, *, expires_ms: float, arrival: int) -> None:
        """Add a request; `arrival` is a number that grows with each new request."""
        assert request_id not in self._entry, "a request waits once"
        entry = self._entry[request_id] = (expires_ms, arrival, request_id)
        index = bisect_left(self._order, entry, lo=self._first)
        if index == self._first > 0:  # back to the front, where a place is free
            self._first -= 1
            self._order[self._first] = entry
        else:
            self._order.insert(index, entry)

    def peek(self) -> RequestId | None:
        return self._order[self._first][2] if self._entry else None

    def remove(self, request_id: RequestId) -> None:
        entry = self._entry.pop(request_id)
        index = bisect_left(self._order, entry, lo=self._first)
        if index > self._first:
            del self._order[index]
            return
        self._first += 1
        if self._first > 64 and self._first > len(self._order) // 2:
            del self._order[: self._first]
            self._first = 0

    def ids(self) -> Iterator[RequestId]:
        """All requests, the next one first."""
        return (self._order[index][2] for index in range(self._first, len(self._order)))

    def position(self, request_id: RequestId) -> int:
        """How many requests of this queue go first."""
        return bisect_left(self._order, self._entry[request_id], lo=self._first) - self._first
