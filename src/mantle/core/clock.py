"""What time is it? One clock is injected everywhere, so that tests and the simulator own time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds on a monotonic scale (origin arbitrary), and the wall clock in Unix seconds."""

    def now_ms(self) -> float: ...

    def wall_s(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> float:
        return time.monotonic_ns() / 1e6

    def wall_s(self) -> float:
        return time.time()
