"""Is the sharing fair, provably? The fairness certificate, kept while the scheduler runs.

For tenants that stay backlogged in one lane of one model, service for their weights may differ by
at most 2·U, U the largest cost that one tenant ever had in flight there (Sheng et al., OSDI 2024,
theorem 4.4, with weights): a large request makes a debt that many small ones pay back, long after.
The certificate of a window is max|ΔW| / 2U over the tenants that were backlogged in all of it: at
most 1, or the scheduler is broken. Beside it stands Jain's index of the same tenants: 1 when each
got as much for its weight, 1/n when one of n got everything.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mantle.core.ids import TenantId

WINDOW_MS = 10_000.0
WINDOWS_KEPT = 64
"""Closed windows that are remembered for reports."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window in which at least two tenants were backlogged from beginning to end."""

    end_ms: float
    ratio: float
    jain_index: float


@dataclass(slots=True)
class Certificate:
    """Of one lane on one model. Times in milliseconds, costs in token cost a weight.

    Closing a window costs as much as was charged in it, however many tenants wait.
    """

    window_ms: float = WINDOW_MS
    last: float = 0.0
    highest: float = 0.0
    _closed: deque[ClosedWindow] = field(default_factory=lambda: deque(maxlen=WINDOWS_KEPT))
    _waiting_since_ms: dict[TenantId, float] = field(default_factory=dict)
    _served: dict[TenantId, float] = field(default_factory=dict)  # in this window
    _in_flight: dict[TenantId, float] = field(default_factory=dict)
    _largest_in_flight: float = 0.0
    _window_start_ms: float = 0.0
    _waited_all_count: int = 0  # backlogged since the window began

    def waits(self, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has become backlogged."""
        self._roll(now_ms)
        if tenant_id not in self._waiting_since_ms:
            self._waiting_since_ms[tenant_id] = now_ms
            self._waited_all_count += now_ms <= self._window_start_ms

    def rests(self, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has nothing waiting any more."""
        self._roll(now_ms)
        since_ms = self._waiting_since_ms.pop(tenant_id, None)
        if since_ms is not None:
            self._waited_all_count -= since_ms <= self._window_start_ms

    def charged(self, tenant_id: TenantId, weighted_cost: float, now_ms: float) -> None:
        """Cost went into flight (by estimate), or an estimate was corrected."""
        self._roll(now_ms)
        in_flight = self._in_flight.get(tenant_id, 0.0) + weighted_cost
        self._in_flight[tenant_id] = in_flight
        self._largest_in_flight = max(self._largest_in_flight, in_flight)
        self._served[tenant_id] = self._served.get(tenant_id, 0.0) + weighted_cost

    def landed(self, tenant_id: TenantId, weighted_cost: float, now_ms: float) -> None:
        """An attempt ended: what it was charged in all is no longer in flight."""
        self._roll(now_ms)
        left = self._in_flight.get(tenant_id, 0.0) - weighted_cost
        if left > 1e-6:
            self._in_flight[tenant_id] = left
        else:
            self._in_flight.pop(tenant_id, None)

    def is_in_flight(self, tenant_id: TenantId) -> bool:
        """Some attempt of the tenant has not landed yet."""
        return tenant_id in self._in_flight

    # --- answers --------------------------------------------------------------------------------
    @property
    def largest_in_flight(self) -> float:
        """U: the largest cost that one tenant ever had in flight, for its weight."""
        return self._largest_in_flight

    def present(self, now_ms: float) -> float:
        """The worse of the last closed window and the open one so far; a quiet one counts 0."""
        self._roll(now_ms)
        return max(self.last, self._ratio(self._compared()))

    def closed_since(self, since_ms: float) -> list[ClosedWindow]:
        """The windows with a comparison that ended then or later, as far as they are kept."""
        return [window for window in self._closed if window.end_ms >= since_ms]

    # --- inside ---------------------------------------------------------------------------------
    def _roll(self, now_ms: float) -> None:
        if now_ms - self._window_start_ms < self.window_ms:
            return
        shares = self._compared()
        self.last = self._ratio(shares)
        self.highest = max(self.highest, self.last)
        if shares:
            jain = jain_index(shares, count=self._waited_all_count)
            self._closed.append(ClosedWindow(now_ms, self.last, jain))
        self._window_start_ms = now_ms
        self._waited_all_count = len(self._waiting_since_ms)
        self._served = {}

    def _compared(self) -> list[float]:
        """What those got that waited all the time, one 0 for all that got nothing; may be empty."""
        if self._waited_all_count < 2 or self._largest_in_flight == 0.0:
            return []
        served = [
            weighted
            for tenant_id, weighted in self._served.items()
            if self._waiting_since_ms.get(tenant_id, math.inf) <= self._window_start_ms
        ]
        if len(served) < self._waited_all_count:
            served.append(0.0)
        return served

    def _ratio(self, shares: list[float]) -> float:
        return (max(shares) - min(shares)) / (2 * self._largest_in_flight) if shares else 0.0


def jain_index(shares: Iterable[float], *, count: int) -> float:
    """Of `count` tenants, those not in `shares` got nothing; 1 when nobody got anything."""
    total = squares = 0.0
    for share in shares:
        got = max(0.0, share)  # an estimate taken back is no service
        total += got
        squares += got * got
    return total * total / (count * squares) if squares else 1.0
