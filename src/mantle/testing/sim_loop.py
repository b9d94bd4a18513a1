"""How does a test run a loop that waits, without waiting? An event loop on simulated time.

Invariant: whenever nothing else is ready, time jumps to the next timer; threads and sockets are the
real ones. So a wait with a time limit around real work would pass its limit at once: wait for an
event there. What never comes ends the test once `DAY_MS` have passed.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from mantle.testing.sim_clock import SimClock

T = TypeVar("T")

DAY_MS: Final = 86_400_000.0


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the `SimClock`'s; it moves the clock itself."""

    def __init__(self, clock: SimClock | None = None) -> None:
        self.clock = clock or SimClock()
        super().__init__(_JumpingSelector(self.clock))

    def time(self) -> float:
        return self.clock.now_ms() / 1e3


def run_on_sim_time(work: Coroutine[Any, Any, T], clock: SimClock | None = None) -> T:
    """`asyncio.run` on simulated time."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(clock)) as runner:
        return runner.run(work)


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for the next timer, but moves the clock there."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._clock = clock
        self._ends_ms = clock.now_ms() + DAY_MS

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._clock.advance(timeout * 1e3)
        if self._clock.now_ms() > self._ends_ms:
            raise TimeoutError("a day of simulated time has passed")
        return ready
