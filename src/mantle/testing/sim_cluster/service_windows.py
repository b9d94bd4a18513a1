"""Was the service shared as promised? A second opinion on the fairness certificate.

It counts what tenants really got (prompts taken in, tokens produced), knows nothing of the
scheduler's own accounts, and compares tenants that compete for the same slots: those that wait in
the same lane for the same model. Invariant: in each window, of two tenants that were backlogged in
all of it, neither got more than 2·U above the other for its weight, U the largest cost that one
tenant ever had in flight for that model and lane (a debt made by one large request is paid back by
many small ones, long after).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mantle.core.ids import TenantId

WINDOW_MS = 2_000.0  # the bound holds in any window; short ones are many


@dataclass(slots=True)
class ServiceWindows:
    """One lane of one model. Costs are divided by the tenant's weight on their way in."""

    weight_of: Callable[[TenantId], float]
    window_ms: float = WINDOW_MS
    highest: float = 0.0
    compared: int = 0  # windows in which at least two tenants could be compared
    jain_sum: float = 0.0  # of Jain's index over them
    _start_ms: float = 0.0
    _waiting: defaultdict[TenantId, int] = field(default_factory=lambda: defaultdict(int))
    _whole: set[TenantId] = field(default_factory=set)
    _served: defaultdict[TenantId, float] = field(default_factory=lambda: defaultdict(float))
    _in_flight: defaultdict[TenantId, float] = field(default_factory=lambda: defaultdict(float))
    _in_flight_most: float = 0.0

    def waits(self, tenant_id: TenantId, now_ms: float) -> None:
        """One more of its requests waits."""
        self._roll(now_ms)
        self._waiting[tenant_id] += 1

    def rests(self, tenant_id: TenantId, now_ms: float) -> None:
        """One of its requests waits no more."""
        self._roll(now_ms)
        self._waiting[tenant_id] -= 1
        if not self._waiting[tenant_id]:
            self._whole.discard(tenant_id)

    def flies(self, tenant_id: TenantId, cost: float, now_ms: float) -> None:
        """An attempt of this cost starts (negative: is over)."""
        self._roll(now_ms)
        self._in_flight[tenant_id] += cost / self.weight_of(tenant_id)
        self._in_flight_most = max(self._in_flight_most, self._in_flight[tenant_id])

    def served(self, tenant_id: TenantId, cost: float, now_ms: float) -> None:
        """It got service of this cost."""
        self._roll(now_ms)
        self._served[tenant_id] += cost / self.weight_of(tenant_id)

    def restart(self, now_ms: float) -> None:
        """A new server has books of its own: what was open is not compared."""
        self._start_ms = now_ms
        self._in_flight_most = 0.0
        for counts in (self._waiting, self._whole, self._served, self._in_flight):
            counts.clear()

    def _roll(self, now_ms: float) -> None:
        if now_ms - self._start_ms < self.window_ms:
            return
        if len(self._whole) > 1 and self._in_flight_most > 0:
            shares = [self._served[tenant_id] for tenant_id in self._whole]
            self.highest = max(
                self.highest, (max(shares) - min(shares)) / (2 * self._in_flight_most)
            )
            self.compared += 1
            self.jain_sum += jain_index(shares)
        self._start_ms = now_ms
        self._whole = {tenant_id for tenant_id, count in self._waiting.items() if count}
        self._served.clear()


def jain_index(shares: Sequence[float]) -> float:
    """1 when all got the same, 1/n when one of n got everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
