"""How much of the service does each lane really get now? A decaying mean of what was produced.

Lane order charges an attempt when it starts, by estimate; this counts tokens as they come, so that
a lane whose long attempts run on is not taken for one that starves.
"""

import math

from mantle.core.lane import Lane


class LaneService:
    """Token cost produced a lane, forgotten with time constant `window_ms`."""

    def __init__(self, *, window_ms: float = 10_000.0) -> None:
        self._window_ms = window_ms
        self._cost = dict.fromkeys(Lane, 0.0)
        self._seen_ms = 0.0

    def served(self, lane: Lane, cost: float, now_ms: float) -> None:
        self._decay(now_ms)
        self._cost[lane] += cost

    def share(self, lane: Lane, now_ms: float) -> float | None:
        """The lane's share of what was produced lately outside Reserved; None when nothing was."""
        self._decay(now_ms)
        total = sum(cost for other, cost in self._cost.items() if other is not Lane.RESERVED)
        return self._cost[lane] / total if total else None

    def _decay(self, now_ms: float) -> None:
        elapsed_ms = now_ms - self._seen_ms
        if elapsed_ms <= 0:
            return
        self._seen_ms = now_ms
        kept = math.exp(-elapsed_ms / self._window_ms)
        for lane in self._cost:
            self._cost[lane] *= kept
