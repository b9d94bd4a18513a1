"""May this tenant use so many tokens of this model now? Reserve, then settle; never check-then-add.

Invariant: a `Hold` takes from every limit or from none, and gives back exactly what was not used,
once. Input and output are held from acceptance until they are computed; computed tokens count
for a minute. So in no window of a minute does a tenant get more than its limit, and a long
request gives its early tokens back while it runs. All methods are synchronous: between a look at
a limit and the hold, nothing else can run.
"""

from dataclasses import dataclass, field

from mantle.admission.port import RateLimit, RateLimits
from mantle.admission.token_window import TokenWindow
from mantle.core.clock import Clock
from mantle.core.errors import BeyondQuota, ConcurrencyExceeded, QuotaExceeded
from mantle.core.ids import ModelId, TenantId
from mantle.core.limits import QUOTA_HELD_RETRY_MS, QUOTA_OUTPUT_TOKENS_MIN
from mantle.core.tenant import Quota, Tenant
from mantle.core.tokens import Usage


@dataclass(slots=True)
class _Meter:
    """What one tenant takes of one model."""

    input: TokenWindow = field(default_factory=TokenWindow)
    output: TokenWindow = field(default_factory=TokenWindow)
    running: int = 0


class Hold:
    """What one request took of its tenant's quota. `settle` once; `progress` as often as wished."""

    __slots__ = ("_clock", "_input_left", "_is_settled", "_meter", "_output_used", "output_tokens")

    def __init__(self, meter: _Meter, clock: Clock, *, input_tokens: int, output_tokens: int):
        self.output_tokens = output_tokens
        self._meter = meter
        self._clock = clock
        self._input_left: int | None = input_tokens  # None: used or given back
        self._output_used = 0
        self._is_settled = False
        meter.running += 1
        meter.input.hold(input_tokens)
        meter.output.hold(output_tokens)

    def progress(self, usage: Usage) -> None:
        """The input is computed and so much output has been made; cached input is free."""
        assert not self._is_settled, "a settled hold does not go on"
        now_ms = self._clock.now_ms()
        if self._input_left is not None:
            used = min(self._input_left, usage.uncached_tokens)
            self._meter.input.use(used, now_ms)
            self._meter.input.release(self._input_left - used)
            self._input_left = None
        made = min(usage.output_tokens, self.output_tokens) - self._output_used
        if made > 0:
            self._meter.output.use(made, now_ms)
            self._output_used += made

    def settle(self, usage: Usage | None) -> None:
        """The request is over: charge what it used (None: nothing was computed), free the rest."""
        if usage is not None:
            self.progress(usage)
        assert not self._is_settled, "a hold is settled once"
        self._is_settled = True
        self._meter.running -= 1
        self._meter.input.release(self._input_left or 0)
        self._meter.output.release(self.output_tokens - self._output_used)


class Quotas:
    """All tenants' meters. Limits come with the tenant, so a change counts from the next ask on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[tuple[TenantId, ModelId], _Meter] = {}

    def reserve(
        self,
        tenant: Tenant,
        model_id: ModelId,
        *,
        input_tokens: int,
        max_output_tokens: int,
        branches: int = 1,
    ) -> list[Hold]:
        """One hold a branch (the first holds the prompt), or none when there is no quota.

        A branch may get less output than it wants (`Hold.output_tokens`): what is left of the
        output quota, shared by all branches. Raises `QuotaExceeded` (later it may fit) or
        `BeyondQuota` (it never will); then nothing is held.
        """
        quota = tenant.quota(model_id)
        if quota is None:
            return []
        meter = self._meters.setdefault((tenant.id, model_id), _Meter())
        now_ms = self._clock.now_ms()
        _check_running(quota, meter, branches)
        _check_input(quota, meter, input_tokens, now_ms)
        output_tokens = _output_share(quota, meter, max_output_tokens, branches, now_ms)
        return [
            Hold(
                meter,
                self._clock,
                input_tokens=input_tokens if branch == 0 else 0,
                output_tokens=output_tokens,
            )
            for branch in range(branches)
        ]

    def limits(self, tenant: Tenant, model_id: ModelId) -> RateLimits | None:
        """What is left for a tenant of a model; None without a quota."""
        quota = tenant.quota(model_id)
        if quota is None:
            return None
        meter = self._meters.get((tenant.id, model_id)) or _Meter()
        now_ms = self._clock.now_ms()
        requests: RateLimit | None = None
        if quota.concurrent_max is not None:
            left = max(0, quota.concurrent_max - meter.running)
            wait_ms = 0.0 if meter.running == 0 else float(QUOTA_HELD_RETRY_MS)
            requests = RateLimit(quota.concurrent_max, left, wait_ms)
        return RateLimits(
            requests,
            _token_limit(quota.input_tokens_per_min, meter.input, now_ms),
            _token_limit(quota.output_tokens_per_min, meter.output, now_ms),
        )


def _check_running(quota: Quota, meter: _Meter, branches: int) -> None:
    limit = quota.concurrent_max
    if limit is None or meter.running + branches <= limit:
        return
    if branches > limit:
        raise BeyondQuota(
            f"{branches} choices are more than your quota of {limit} concurrent requests",
            hint="ask for fewer choices at once",
        )
    raise ConcurrencyExceeded(
        f"your quota of {limit} concurrent requests is in use",
        retry_after_ms=QUOTA_HELD_RETRY_MS,
        hint="wait for one of them to end",
    )


def _check_input(quota: Quota, meter: _Meter, input_tokens: int, now_ms: float) -> None:
    limit = quota.input_tokens_per_min
    if limit is None or input_tokens <= meter.input.free_tokens(limit, now_ms):
        return
    if input_tokens > limit:
        raise BeyondQuota(
            f"the prompt's {input_tokens} tokens are more than your quota of {limit} input tokens "
            "per minute",
            hint="shorten the prompt",
        )
    raise _spent("input", limit, meter.input.wait_ms(input_tokens, limit, now_ms))


def _output_share(
    quota: Quota, meter: _Meter, max_output_tokens: int, branches: int, now_ms: float
) -> int:
    """Output tokens that each branch may hold: what it wants, as far as the quota goes."""
    limit = quota.output_tokens_per_min
    if limit is None:
        return max_output_tokens
    share = meter.output.free_tokens(limit, now_ms) // branches
    least = min(max_output_tokens, QUOTA_OUTPUT_TOKENS_MIN)
    if share >= least:
        return min(share, max_output_tokens)
    if least * branches > limit:
        raise BeyondQuota(
            f"{branches} choices are more than your quota of {limit} output tokens per minute",
            hint="ask for fewer choices at once",
        )
    raise _spent("output", limit, meter.output.wait_ms(least * branches, limit, now_ms))


def _spent(what: str, limit: int, wait_ms: float) -> QuotaExceeded:
    return QuotaExceeded(
        f"your quota of {limit} {what} tokens per minute is spent for now", retry_after_ms=wait_ms
    )


def _token_limit(limit: int | None, window: TokenWindow, now_ms: float) -> RateLimit | None:
    if limit is None:
        return None
    left = max(0, window.free_tokens(limit, now_ms))
    return RateLimit(limit, left, window.reset_ms(now_ms))
