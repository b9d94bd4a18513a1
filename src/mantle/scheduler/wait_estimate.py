"""How long will a waiting request wait? From its place in line and the pace at which it is served.

Pace is the time between two starts of one tenant's (lane, model) while something of it waits, as a
moving mean. Invariant: memory is bounded by what waits now and by who was served in the last
`forget_ms`; an estimate decides nothing.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from mantle.core.ids import ModelId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request

PLATFORM = "platform"

RETRY_AFTER_MS_UNKNOWN = 1_000.0
"""What a full queue says before any pace was measured."""

OnWaitOver = Callable[[Lane, ModelId, float, float], None]
"""Lane, model, the first estimate of a wait and how long it really was, both in milliseconds."""


def unjudged(_lane: Lane, _model_id: ModelId, _estimated_ms: float, _waited_ms: float) -> None:
    """Nobody wants to know."""
    return


@dataclass(slots=True)
class _Pace:
    """Mean milliseconds between starts; None until one request has waited for another."""

    last_ms: float
    gap_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _Promise:
    """What was estimated when the request began to wait; None: nothing was known."""

    queued_ms: float
    wait_ms: float | None


class WaitEstimate:
    """Paces of queues. A tenant not seen yet gets the mean of its lane and model, then of all.

    Each level learns the same gaps, those of one tenant's own queue, so that a fallback is what a
    typical tenant sees and not the much faster pace of all tenants together.
    """

    def __init__(
        self,
        *,
        on_over: OnWaitOver = unjudged,
        smoothing: float = 0.2,
        forget_ms: float = 300_000.0,
    ) -> None:
        self._on_over = on_over
        self._smoothing = smoothing
        self._forget_ms = forget_ms
        self._paces: dict[Hashable, _Pace] = {}  # the one seen longest ago first
        self._promises: dict[RequestId, _Promise] = {}
        self._lines: dict[Hashable, int] = {}  # promises a queue

    def queued(self, request: Request, now_ms: float) -> None:
        """The request begins to wait, behind those of its queue that wait already."""
        own = _levels_of(request)[0]
        position = self._lines.get(own, 0)
        wait_ms = self.wait_ms(request, position, queued_ms=now_ms, now_ms=now_ms)
        self._promises[request.id] = _Promise(now_ms, wait_ms)
        self._lines[own] = position + 1

    def left(self, request: Request) -> None:
        """The request is no longer in line; does nothing when it never was."""
        if self._promises.pop(request.id, None) is None:
            return
        own = _levels_of(request)[0]
        self._lines[own] -= 1
        if not self._lines[own]:
            del self._lines[own]

    def dispatched(self, request: Request, *, queued_ms: float, now_ms: float) -> None:
        """The request, in line since `queued_ms`, starts now: learn, and judge its estimate."""
        self._learn(request, queued_ms, now_ms)
        promise = self._promises.get(request.id)
        self.left(request)
        if promise is not None and promise.wait_ms is not None:
            waited_ms = now_ms - promise.queued_ms
            self._on_over(request.lane, request.model_id, promise.wait_ms, waited_ms)

    def retry_after_ms(self, requests: list[Request], now_ms: float) -> float:
        """Milliseconds until there is room for these in their full queue: so many starts."""
        wait_ms = self.wait_ms(requests[0], len(requests) - 1, queued_ms=now_ms, now_ms=now_ms)
        return RETRY_AFTER_MS_UNKNOWN if wait_ms is None else wait_ms

    def wait_ms(
        self, request: Request, position: int, *, queued_ms: float, now_ms: float
    ) -> float | None:
        """Milliseconds until a request with `position` others before it starts; None: unknown.

        The first start is one gap after the last one. When it is overdue, it is taken to be late
        by as much again, and the gaps behind it to be as long as this one has become.
        """
        return self._wait_ms(_levels_of(request), position, queued_ms, now_ms)

    def newcomer_ms(
        self, lane: Lane, model_id: ModelId, tenant_id: TenantId, position: int, now_ms: float
    ) -> float | None:
        """The same for a request that would come now."""
        return self._wait_ms(_levels(lane, model_id, tenant_id), position, now_ms, now_ms)

    def _wait_ms(
        self, levels: Sequence[Hashable], position: int, queued_ms: float, now_ms: float
    ) -> float | None:
        gap_ms = self._gap_ms(levels)
        if gap_ms is None:
            return None
        pace = self._paces.get(levels[0])
        since_ms = queued_ms if pace is None else max(pace.last_ms, queued_ms)
        elapsed_ms = max(0.0, now_ms - since_ms)
        return abs(gap_ms - elapsed_ms) + max(gap_ms, elapsed_ms) * position

    def __len__(self) -> int:
        """Paces and promises that are remembered."""
        return len(self._paces) + len(self._promises)

    def _gap_ms(self, levels: Sequence[Hashable]) -> float | None:
        for level in levels:
            pace = self._paces.get(level)
            if pace is not None and pace.gap_ms is not None:
                return pace.gap_ms
        return None

    def _learn(self, request: Request, queued_ms: float, now_ms: float) -> None:
        levels = _levels_of(request)
        own = self._paces.get(levels[0])
        since_ms = queued_ms if own is None else max(own.last_ms, queued_ms)
        has_waited = now_ms > queued_ms  # or the gap says how often it asks, not how it is served
        for level in levels:
            pace = self._paces.pop(level, None) or _Pace(now_ms)
            self._paces[level] = pace  # now the last seen
            pace.last_ms = now_ms
            if has_waited:
                gap_ms = now_ms - since_ms
                mean_ms = gap_ms if pace.gap_ms is None else pace.gap_ms
                pace.gap_ms = mean_ms + self._smoothing * (gap_ms - mean_ms)
        self._forget(now_ms)

    def _forget(self, now_ms: float) -> None:
        while self._paces:
            level = next(iter(self._paces))
            if now_ms - self._paces[level].last_ms <= self._forget_ms:
                return
            del self._paces[level]


def _levels(lane: Lane, model_id: ModelId, tenant_id: TenantId) -> tuple[Hashable, ...]:
    """Whose pace says most, first."""
    return (lane, model_id, tenant_id), (lane, model_id), PLATFORM


def _levels_of(request: Request) -> tuple[Hashable, ...]:
    return _levels(request.lane, request.model_id, request.tenant_id)
