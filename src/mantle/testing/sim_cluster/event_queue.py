"""What happens next, and when? Simulated time as a heap of events.

Invariant: time never goes back; events of the same instant happen in the order they were asked
for, so a run is a pure function of its seed.
"""

import heapq
from collections.abc import Callable


class EventQueue:
    """A clock that moves only from one event to the next. Implements `Clock`."""

    def __init__(self) -> None:
        self.at_ms = 0.0
        self.count = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def now_ms(self) -> float:
        return self.at_ms

    def wall_s(self) -> float:
        return self.at_ms / 1e3

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Do `action` when so much time has passed."""
        self.at(self.at_ms + delay_ms, action)

    def at(self, at_ms: float, action: Callable[[], None]) -> None:
        """Do `action` at that time, or now if it has passed."""
        self._asked += 1
        due_ms = at_ms if at_ms > self.at_ms else self.at_ms
        heapq.heappush(self._heap, (due_ms, self._asked, action))

    def run_next(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._heap:
            return False
        self.at_ms, _, action = heapq.heappop(self._heap)
        self.count += 1
        action()
        return True
