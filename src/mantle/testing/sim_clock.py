"""What time is it in a test? Whatever the test says: a clock that moves only when told to.

Invariant: time never goes back, and nothing here sleeps.
"""


class SimClock:
    """A `Clock` of simulated milliseconds; the wall clock runs beside it."""

    def __init__(self, *, now_ms: float = 0.0, wall_s: float = 1_800_000_000.0) -> None:
        self._now_ms = now_ms
        self._wall_origin_s = wall_s - now_ms / 1e3

    def now_ms(self) -> float:
        return self._now_ms

    def wall_s(self) -> float:
        return self._wall_origin_s + self._now_ms / 1e3

    def advance(self, step_ms: float) -> None:
        """Let `step_ms` pass."""
        assert step_ms >= 0, "time does not go back"
        self._now_ms += step_ms

    def sleep(self, seconds: float) -> None:
        """A stand-in for `time.sleep` that only moves this clock."""
        self.advance(seconds * 1e3)
