"""What came of a replay? Numbers a lane and a tenant, counted from what clients saw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mantle.core.ids import TenantId
from mantle.core.outcome import Outcome
from mantle.testing.sim_cluster.paper_request import Life
from mantle.testing.sim_cluster.replay import Replay


@dataclass(frozen=True, slots=True)
class Line:
    """A lane or a tenant. Waits are from acceptance to the first dispatch, in milliseconds;
    shares are of all served cost and of all weights.
    """

    name: str
    requests: int
    completed: int
    expired: int
    served_cost: float
    served_share: float
    weight_share: float | None
    wait_ms_p50: float
    wait_ms_p99: float
    wait_ms_max: float
    ttft_ms_p50: float
    parks: int


@dataclass(frozen=True, slots=True)
class Report:
    """The whole run. Jain's index is the mean over the windows in which tenants competed: of
    those that were backlogged all the time, by cost served for their weights.
    """

    lanes: tuple[Line, ...]
    tenants: tuple[Line, ...]
    requests: int
    rejected: int
    span_s: float
    end_s: float
    utilisation: float
    certificate_max: float
    windows_compared: int
    jain_index: float | None


def report_of(run: Replay) -> Report:
    """Count everything once."""
    watcher, pool = run.watcher, run.pool
    lives = watcher.lives
    weight_sum = sum(pool.weight_of(t) for t in {life.request.tenant_id for life in lives})
    total = sum(life.served_cost for life in lives) or 1.0

    def share(tenant: str) -> float:
        return pool.weight_of(TenantId(tenant)) / weight_sum

    windows = watcher.windows.values()
    compared = sum(w.compared for w in windows)
    slot_ms = pool.accelerators * pool.slots * run.span_ms
    return Report(
        lanes=_lines(lives, lambda life: str(life.request.lane), total, None),
        tenants=_lines(lives, lambda life: life.request.tenant_id, total, share),
        requests=len(lives),
        rejected=watcher.outcomes[Outcome.REJECTED],
        span_s=run.span_ms / 1e3,
        end_s=run.end_ms / 1e3,
        utilisation=watcher.slot_ms / slot_ms if slot_ms else 0.0,
        certificate_max=watcher.certificate_max(),
        windows_compared=compared,
        jain_index=sum(w.jain_sum for w in windows) / compared if compared else None,
    )


def _lines(
    lives: Sequence[Life],
    key_of: Callable[[Life], str],
    total: float,
    weight_share: Callable[[str], float] | None,
) -> tuple[Line, ...]:
    """One line a key, the most served first."""
    groups: dict[str, list[Life]] = {}
    for life in lives:
        groups.setdefault(key_of(life), []).append(life)
    lines = [
        _line(name, group, total, weight_share(name) if weight_share else None)
        for name, group in groups.items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.served_cost))


def _line(name: str, group: Sequence[Life], total: float, weight_share: float | None) -> Line:
    waits, ttfts = [], []
    for life in group:
        if life.first_dispatch_ms is not None:
            waits.append(life.first_dispatch_ms - life.request.accepted_ms)
        if life.first_token_ms is not None:
            ttfts.append(life.first_token_ms - life.request.accepted_ms)
    waits.sort()
    ttfts.sort()
    served_cost = sum(life.served_cost for life in group)
    outcomes = [life.outcome for life in group]
    return Line(
        name,
        len(group),
        outcomes.count(Outcome.COMPLETED),
        outcomes.count(Outcome.EXPIRED),
        served_cost,
        served_cost / total,
        weight_share,
        quantile(waits, 0.5),
        quantile(waits, 0.99),
        quantile(waits, 1.0),
        quantile(ttfts, 0.5),
        sum(life.parks for life in group),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share lies (nearest rank); 0 of nothing."""
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0
