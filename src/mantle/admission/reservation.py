"""May this request use the capacity that its tenant bought? One token bucket a rate.

A bucket and not the sliding window of quotas: a window counts a token from the hold until a minute
after its use, so that a tenant can never get *all* it bought; a bucket fills at exactly the bought
rate. It holds one minute's worth, so the whole minute may be asked for at once after a quiet one.
Invariant: what is taken in a time t is at most rate × t + one minute's worth + one request. Each
`ReservedHold` is settled once and gives back exactly what was not used. All methods are
synchronous: between a look at a bucket and the hold, nothing else can run.
"""

from dataclasses import dataclass

from mantle.core.clock import Clock
from mantle.core.ids import ModelId, TenantId
from mantle.core.limits import RESERVED_BURST_MS, RESERVED_OVERSIZE_SHARE
from mantle.core.tenant import Reservation, Tenant
from mantle.core.tokens import Usage


@dataclass(slots=True)
class _Bucket:
    """What is left of one bought rate; below zero while a request larger than it all runs."""

    rate_per_min: int
    level: float
    seen_ms: float

    @property
    def size(self) -> float:
        return self.rate_per_min * RESERVED_BURST_MS / 60_000

    def refill(self, rate_per_min: int, now_ms: float) -> None:
        """Let time pass; a changed rate holds from now on."""
        earned = self.rate_per_min * max(0.0, now_ms - self.seen_ms) / 60_000
        self.seen_ms = now_ms
        self.level = min(self.size, self.level + earned)
        if rate_per_min != self.rate_per_min:
            size_before = self.size
            self.rate_per_min = rate_per_min
            grown_by = max(0.0, self.size - size_before)
            self.level = min(self.size, self.level + grown_by)

    def fits(self, tokens: int) -> bool:
        """It does when it is all there. What could never be there whole needs half a bucket."""
        if tokens <= self.level:
            return True
        return tokens > self.size and self.level >= self.size * RESERVED_OVERSIZE_SHARE

    def give_back(self, tokens: int) -> None:
        self.level = min(self.size, self.level + tokens)


@dataclass(slots=True)
class _Meter:
    """What one tenant has left of what it bought of one model."""

    input: _Bucket
    output: _Bucket

    def refill(self, bought: Reservation, now_ms: float) -> None:
        self.input.refill(bought.input_tokens_per_min, now_ms)
        self.output.refill(bought.output_tokens_per_min, now_ms)


class ReservedHold:
    """What one request took. `settle` once; the rest is given back then, cached input before."""

    __slots__ = ("_input_held", "_is_settled", "_meter", "_output_held")

    def __init__(self, meter: _Meter, *, input_tokens: int, output_tokens: int) -> None:
        self._meter = meter
        self._input_held = input_tokens
        self._output_held = output_tokens
        self._is_settled = False
        meter.input.level -= input_tokens
        meter.output.level -= output_tokens

    def progress(self, usage: Usage) -> None:
        """The prompt is computed: what of it was cached is free."""
        assert not self._is_settled, "a settled hold does not go on"
        cached = self._input_held - min(self._input_held, usage.uncached_tokens)
        self._meter.input.give_back(cached)
        self._input_held -= cached

    def settle(self, usage: Usage | None) -> None:
        """The request is over. None: nothing was computed."""
        assert not self._is_settled, "a hold is settled once"
        if usage is not None:
            self.progress(usage)
        self._is_settled = True
        made = 0 if usage is None else min(usage.output_tokens, self._output_held)
        self._meter.output.give_back(self._output_held - made)
        if usage is None:
            self._meter.input.give_back(self._input_held)


class ReservedRates:
    """All tenants' buckets. The rates come with the tenant: a change counts from the next ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[tuple[TenantId, ModelId], _Meter] = {}

    def take(
        self,
        tenant: Tenant,
        model_id: ModelId,
        *,
        input_tokens: int,
        max_output_tokens: int,
        branches: int = 1,
    ) -> list[ReservedHold] | None:
        """One hold a branch (the first holds the prompt), or None: not within what was bought."""
        bought = tenant.reservation(model_id)
        if bought is None:
            return None
        meter = self._meter(tenant.id, bought)
        if not meter.input.fits(input_tokens):
            return None
        if not meter.output.fits(max_output_tokens * branches):
            return None
        return [
            ReservedHold(
                meter,
                input_tokens=input_tokens if branch == 0 else 0,
                output_tokens=max_output_tokens,
            )
            for branch in range(branches)
        ]

    def _meter(self, tenant_id: TenantId, bought: Reservation) -> _Meter:
        now_ms = self._clock.now_ms()
        meter = self._meters.get((tenant_id, bought.model_id))
        if meter is None:
            meter = self._meters[tenant_id, bought.model_id] = _Meter(
                _full(bought.input_tokens_per_min, now_ms),
                _full(bought.output_tokens_per_min, now_ms),
            )
        meter.refill(bought, now_ms)
        return meter


def _full(rate_per_min: int, now_ms: float) -> _Bucket:
    bucket = _Bucket(rate_per_min, 0.0, now_ms)
    bucket.level = bucket.size
    return bucket
