"""Which key has the least value, when values mostly grow? A heap that corrects itself on reading.

Invariant: every live key has exactly one valid entry, and its entry is never above its value; so
growth needs no work until the key comes to the top, and reading costs O(log n) amortised.
"""

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K", bound=str)


class LazyMinHeap(Generic[K]):
    """Keys ordered by `value_of(key)`; ties go to the smaller key."""

    def __init__(self, value_of: Callable[[K], float]) -> None:
        self._value_of = value_of
        self._heap: list[tuple[float, K]] = []
        self._entry: dict[K, float] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._entry

    def __len__(self) -> int:
        return len(self._entry)

    def add(self, key: K) -> None:
        """Put the key in (again) at its present value; call it also when the value has fallen."""
        value = self._value_of(key)
        if self._entry.get(key) == value:
            return
        self._entry[key] = value
        heapq.heappush(self._heap, (value, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._entry):
            self._sweep()

    def discard(self, key: K) -> None:
        self._entry.pop(key, None)

    def least(self) -> K | None:
        """The key with the least value, left in place; None when empty."""
        heap, entry = self._heap, self._entry
        while heap:
            value, key = heap[0]
            if entry.get(key) != value:
                heapq.heappop(heap)  # discarded, or superseded by a lower entry
                continue
            current = self._value_of(key)
            if current == value:
                return key
            entry[key] = current
            heapq.heapreplace(heap, (current, key))
        return None

    def _sweep(self) -> None:
        """Drop what was superseded: it would come to the top only if all values grew past it."""
        self._heap = [(value, key) for key, value in self._entry.items()]
        heapq.heapify(self._heap)
