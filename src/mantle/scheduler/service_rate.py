"""How fast is a tenant being served? An EWMA of the time between its completions."""

from mantle.core.ids import TenantId


class ServiceRate:
    """Guesses waits from completions; silent tenants get the platform's own pace."""

    def __init__(self, *, smoothing: float = 0.2, first_guess_ms: float = 1_000.0) -> None:
        self._smoothing = smoothing
        self._first_guess_ms = first_guess_ms
        self._gap_ms: dict[TenantId, float] = {}
        self._last_ms: dict[TenantId, float] = {}

    def served(self, tenant_id: TenantId, now_ms: float) -> None:
        """One of the tenant's requests ended now."""
        last_ms = self._last_ms.get(tenant_id)
        self._last_ms[tenant_id] = now_ms
        if last_ms is None:
            return
        gap_ms = now_ms - last_ms
        mean = self._gap_ms.get(tenant_id, gap_ms)
        self._gap_ms[tenant_id] = mean + self._smoothing * (gap_ms - mean)

    def expected_wait_ms(self, tenant_id: TenantId, requests: int) -> float:
        """Time until `requests` more of this tenant's requests have ended."""
        return self._gap_ms.get(tenant_id, self._first_guess_ms) * max(1, requests)
