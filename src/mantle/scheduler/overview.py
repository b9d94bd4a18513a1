"""What does the scheduler look like from outside? Facts for metrics and reports.

Invariant: nothing is decided here. It is read on the event loop that owns the scheduler, so each
answer is of one moment; what is handed out is values, never the scheduler's own objects.
"""

from collections import Counter
from collections.abc import Mapping

from mantle.core.clock import Clock
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.scheduler.certificate import jain_index
from mantle.scheduler.ledger import OTHERS, Tally
from mantle.scheduler.port import (
    LaneShare,
    QueueLine,
    QueuesReport,
    ReplicaLine,
    SharesReport,
    Sharing,
    TenantShare,
    Waits,
)
from mantle.scheduler.scheduler import Scheduler

Key = tuple[Lane, TenantId]


class Overview:
    """Implements `OverviewPort`, and answers the metrics."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    # --- for metrics ----------------------------------------------------------------------------
    def certificates(self) -> dict[tuple[Lane, ModelId], float]:
        """The fairness certificate of each lane on each model, as it stands (design §5: <= 1)."""
        now_ms = self._clock.now_ms()
        certificates = self._scheduler.accounts.certificates()
        return {key: certificate.present(now_ms) for key, certificate in certificates.items()}

    def certificates_highest(self) -> dict[tuple[Lane, ModelId], float]:
        """The same, the worst since the start: no window is missed between two scrapes."""
        now_ms = self._clock.now_ms()
        return {
            key: max(certificate.present(now_ms), certificate.highest)
            for key, certificate in self._scheduler.accounts.certificates().items()
        }

    # --- OverviewPort ---------------------------------------------------------------------------
    def shares(self) -> SharesReport:
        """See `OverviewPort.shares`: O(tenants of the window)."""
        now_ms = self._clock.now_ms()
        ledger = self._scheduler.accounts.ledger
        tallies = ledger.totals(now_ms)
        since_ms = ledger.since_ms(now_ms)
        by_lane = {lane: _cost(tallies, lane) for lane in Lane}
        total = sum(by_lane.values())
        tenants = self._tenants(tallies, by_lane, total)
        return SharesReport(
            now_ms - since_ms,
            total,
            tuple(
                LaneShare(lane, cost, _share(cost, total), _jain_of(tenants, lane))
                for lane, cost in by_lane.items()
            ),
            tenants,
            self._sharing(since_ms, now_ms),
        )

    def queues(self) -> QueuesReport:
        """See `OverviewPort.queues`: O(queues), save where requests have deadlines."""
        now_ms = self._clock.now_ms()
        lines = [
            QueueLine(
                lane,
                tenant_id,
                model_id,
                queued,
                cost,
                now_ms - since_ms,
                self._scheduler.waits.newcomer_ms(lane, model_id, tenant_id, queued, now_ms),
            )
            for (lane, tenant_id, model_id), queued, cost, since_ms in (
                self._scheduler.queues.lines()
            )
        ]
        lines.sort(key=lambda line: -line.oldest_wait_ms)
        replicas = tuple(
            ReplicaLine(
                replica.replica_id,
                replica.model_id,
                replica.slots,
                len(replica.running),
                replica.kv_tokens,
                replica.kv_tokens_taken,
                replica.draining,
            )
            for replica in self._scheduler.residents.replicas()
        )
        return QueuesReport(tuple(lines), replicas)

    # --- inside ---------------------------------------------------------------------------------
    def _tenants(
        self, tallies: Mapping[Key, Tally], by_lane: Mapping[Lane, float], total: float
    ) -> tuple[TenantShare, ...]:
        queued = self._scheduler.queues.loads()
        running: Counter[Key] = Counter()
        for one in self._scheduler.residents.all_running():
            running[one.request.lane, one.request.tenant_id] += 1
        nothing = Tally()
        found = []
        for key in tallies.keys() | queued.keys() | running.keys():
            (lane, tenant_id), tally = key, tallies.get(key, nothing)
            found.append(
                TenantShare(
                    tenant_id,
                    lane,
                    self._scheduler.accounts.weight_of(tenant_id),
                    tally.served_cost,
                    _share(tally.served_cost, by_lane[lane]),
                    _share(tally.served_cost, total),
                    _waits(tally),
                    tally.parks,
                    running[key],
                    queued.get(key, 0),
                )
            )
        found.sort(key=lambda one: (-one.served_cost, one.lane.rank, one.tenant_id))
        return tuple(found)

    def _sharing(self, since_ms: float, now_ms: float) -> tuple[Sharing, ...]:
        found = []
        for (lane, model_id), certificate in self._scheduler.accounts.certificates().items():
            present = certificate.present(now_ms)
            closed = certificate.closed_since(since_ms)
            jain = sum(window.jain_index for window in closed) / len(closed) if closed else None
            highest = max(present, certificate.highest)
            found.append(Sharing(lane, model_id, present, highest, len(closed), jain))
        return tuple(found)


def _cost(tallies: Mapping[Key, Tally], lane: Lane) -> float:
    return sum(tally.served_cost for (other, _), tally in tallies.items() if other is lane)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _waits(tally: Tally) -> Waits:
    mean_ms = tally.wait_ms / tally.waits if tally.waits else 0.0
    return Waits(tally.waits, mean_ms, tally.wait_ms_at(0.5), tally.wait_ms_at(0.99))


def _jain_of(tenants: tuple[TenantShare, ...], lane: Lane) -> float | None:
    shares = [
        one.served_cost / one.weight
        for one in tenants
        if one.lane is lane and one.served_cost > 0 and one.tenant_id != OTHERS
    ]
    return jain_index(shares, count=len(shares)) if len(shares) > 1 else None
