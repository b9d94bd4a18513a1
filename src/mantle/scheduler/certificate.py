"""Is the sharing fair, provably? The fairness certificate, kept while the scheduler runs.

For tenants that stay backlogged in one lane of one model, service for their weights may differ by
at most 2·U, U the largest cost that one tenant ever had in flight there (Sheng et al., OSDI 2024,
theorem 4.4, with weights): a large request makes a debt that many small ones pay back, long after.
The certificate of a window is max|ΔW| / 2U over the tenants that were backlogged in all of it: at
most 1, or the scheduler is broken.
"""

from dataclasses import dataclass, field

from mantle.core.ids import TenantId

WINDOW_MS = 10_000.0


@dataclass(slots=True)
class _Served:
    weighted: float = 0.0
    waiting_since_ms: float | None = None  # None: not backlogged


@dataclass(slots=True)
class Certificate:
    """Of one lane on one model. Times in milliseconds, costs in token cost a weight."""

    window_ms: float = WINDOW_MS
    last: float = 0.0
    highest: float = 0.0
    _served: dict[TenantId, _Served] = field(default_factory=dict)
    _in_flight: dict[TenantId, float] = field(default_factory=dict)
    _largest_in_flight: float = 0.0
    _window_start_ms: float = 0.0

    def waits(self, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has become backlogged."""
        self._roll(now_ms)
        served = self._served.setdefault(tenant_id, _Served())
        if served.waiting_since_ms is None:
            served.waiting_since_ms = now_ms

    def rests(self, tenant_id: TenantId, now_ms: float) -> None:
        """The tenant has nothing waiting any more."""
        self._roll(now_ms)
        served = self._served.get(tenant_id)
        if served is not None:
            served.waiting_since_ms = None

    def charged(self, tenant_id: TenantId, weighted_cost: float, now_ms: float) -> None:
        """Cost went into flight (by estimate), or an estimate was corrected."""
        self._roll(now_ms)
        in_flight = self._in_flight.get(tenant_id, 0.0) + weighted_cost
        self._in_flight[tenant_id] = in_flight
        self._largest_in_flight = max(self._largest_in_flight, in_flight)
        served = self._served.get(tenant_id)
        if served is not None:
            served.weighted += weighted_cost

    def landed(self, tenant_id: TenantId, weighted_cost: float, now_ms: float) -> None:
        """An attempt ended: what it was charged in all is no longer in flight."""
        self._roll(now_ms)
        left = self._in_flight.get(tenant_id, 0.0) - weighted_cost
        if left > 1e-6:
            self._in_flight[tenant_id] = left
        else:
            self._in_flight.pop(tenant_id, None)

    def _roll(self, now_ms: float) -> None:
        if now_ms - self._window_start_ms < self.window_ms:
            return
        self.last = self._ratio()
        self.highest = max(self.highest, self.last)
        self._window_start_ms = now_ms
        self._served = {
            tenant_id: _Served(0.0, now_ms)
            for tenant_id, served in self._served.items()
            if served.waiting_since_ms is not None
        }

    def _ratio(self) -> float:
        whole = [
            served.weighted
            for served in self._served.values()
            if served.waiting_since_ms is not None
            and served.waiting_since_ms <= self._window_start_ms
        ]
        if len(whole) < 2 or self._largest_in_flight == 0.0:
            return 0.0
        return (max(whole) - min(whole)) / (2 * self._largest_in_flight)
