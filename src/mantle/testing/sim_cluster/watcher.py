"""Is every promise kept, after every event? It watches a run and raises at the first breach.

Cheap checks are made always, those that look at everything each `every` events; the numbers they
need are counted from what engines say, not from the scheduler's books.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mantle.core.ids import ModelId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.outcome import Outcome
from mantle.scheduler.cost import CostWeights
from mantle.scheduler.effects import Dispatch, Expire
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.event_log import EventLog
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import broken, require
from mantle.testing.sim_cluster.paper_engine import Progress
from mantle.testing.sim_cluster.paper_request import Ask, Life
from mantle.testing.sim_cluster.promises import check_everything, check_places
from mantle.testing.sim_cluster.service_windows import WINDOW_MS, ServiceWindows
from mantle.testing.sim_cluster.timeline import Timeline
from mantle.testing.sim_cluster.witness import Witness

if TYPE_CHECKING:
    from mantle.testing.sim_cluster.cluster import SimCluster

_NEARLY_MS = 1e-6


@dataclass(frozen=True, slots=True)
class _Flight:
    cost: float
    since_ms: float


@dataclass(slots=True)
class Watcher:
    """Sees everything that a run does. `lives` keeps every accepted request, for reports."""

    events: EventQueue
    scheduler: Scheduler
    weight_of: Callable[[TenantId], float]
    wait_ms_max: dict[Lane, float]
    tick_ms: float
    every: int = 40
    log: EventLog | None = None
    may_fail: bool = False
    cost: CostWeights = field(default_factory=CostWeights)
    lives: list[Life] = field(default_factory=list)
    windows: dict[tuple[Lane, ModelId], ServiceWindows] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    window_ms: float = WINDOW_MS
    span_ms: float = math.inf  # slots are counted as busy until then
    slot_ms: float = 0.0
    timeline: Timeline | None = None
    lane_timeline: Timeline | None = None
    witness: Witness | None = None
    open_count: int = 0  # arrived, and the client has seen no end yet
    refused: int = 0  # words of attempts that no longer count
    restored: int = 0  # requests that went on on another server
    _flying: dict[RequestId, _Flight] = field(default_factory=dict)
    _checks: int = 0

    # --- what happened --------------------------------------------------------------------------
    def note(self, what: str, detail: object) -> None:
        """Something for the log only."""
        if self.log is not None:
            self.log.add(self.events.at_ms, what, str(detail))

    def rejected(self, ask: Ask) -> None:
        self.outcomes[Outcome.REJECTED] += ask.branches
        self.note("rejected", ask)

    def accepted(self, life: Life, now_ms: float) -> None:
        self.lives.append(life)
        self.open_count += 1
        if self.witness is not None:
            self.witness.arrived(life)
        life.queued_ms = life.waits_since_ms = now_ms
        self._of(life).waits(life.request.tenant_id, now_ms)
        self.note("accepted", life.request)

    def dispatched(self, life: Life, effect: Dispatch, now_ms: float) -> None:
        """It leaves its queue for a replica, to go on exactly where it was."""
        request = life.request
        require(life.replica_id is None, f"{request.id} was dispatched while it runs")
        require(
            effect.resume_from == life.written_tokens,
            f"{request.id} resumes from {effect.resume_from}, not from {life.written_tokens}",
        )
        running = self.scheduler.residents.find(request.id)
        windows = self._of(life)
        windows.rests(request.tenant_id, now_ms)
        if life.first_dispatch_ms is None:
            life.first_dispatch_ms = now_ms
            self._require_wait_in_bounds(life, now_ms)
            self._served(life, self.cost.of_input(len(request.prompt_tokens)), now_ms)
        life.dispatches += 1
        left = life.output_tokens - effect.resume_from
        expected = left if running is None else running.estimated_output_tokens
        cost = self.cost.of_input(len(request.prompt_tokens))
        cost += self.cost.of_output(max(expected, left))
        self._flying[request.id] = _Flight(cost, now_ms)
        windows.flies(request.tenant_id, cost, now_ms)
        self.note("dispatch", effect)

    def progressed(self, life: Life, progress: Progress, now_ms: float) -> None:
        """Tokens were produced; the client sees them once they are durable."""
        if progress.first_index != life.written_tokens:
            at = life.written_tokens
            broken(f"{life.request.id}: token {progress.first_index} came after {at}")
        life.written_tokens += progress.count
        self._served(life, self.cost.of_output(progress.count), now_ms)

    def shown(self, life: Life, first_index: int, token_ids: list[int]) -> None:
        """Tokens reach the client."""
        if self.witness is not None:
            self.witness.shown(life, first_index, token_ids)
        life.shown_tokens += len(token_ids)
        if life.first_token_ms is None:
            life.first_token_ms = self.events.at_ms

    def is_refused(self, what: str) -> None:
        """The fence refused an attempt's word."""
        self.refused += 1
        self.note("refused", what)

    def parking(self, life: Life, now_ms: float) -> None:
        self._lands(life, now_ms)
        self.note("park", life.request.id)

    def requeued(self, life: Life, now_ms: float) -> None:
        """It waits again: it was parked, or its replica is gone."""
        self._lands(life, now_ms)
        life.waits_since_ms = now_ms
        self._of(life).waits(life.request.tenant_id, now_ms)
        self.note("waits again", f"{life.request.id} after {life.written_tokens} tokens")

    def server_died(self, now_ms: float) -> None:
        """All that this server's books say is void, so nobody is compared across its end."""
        for life in self.lives:
            life.outlived_a_server |= life.outcome is None
            if life.request.id in self._flying:
                self._lands(life, now_ms)
        for windows in self.windows.values():
            windows.restart(now_ms)
        self.note("server dies", "")

    def goes_on(self, life: Life, now_ms: float) -> None:
        """A new server has found it, and queues it."""
        self.restored += 1
        life.queued_ms = life.waits_since_ms = now_ms
        self._of(life).waits(life.request.tenant_id, now_ms)
        self.note("goes on", f"{life.request.id} after {life.written_tokens} tokens")

    def expired(self, life: Life, effect: Expire, now_ms: float) -> None:
        deadline_ms = life.request.deadline_ms
        by_deadline = deadline_ms is not None and deadline_ms <= now_ms
        waited_ms = now_ms - life.queued_ms
        too_long = waited_ms >= self.wait_ms_max[life.request.lane] - _NEARLY_MS
        require(by_deadline or too_long, f"{effect} came too early")

    def left(self, life: Life, now_ms: float) -> None:
        """The scheduler has done with it; its end is not durable yet."""
        if life.request.id in self._flying:
            self._lands(life, now_ms)
        elif life.replica_id is None:
            self._of(life).rests(life.request.tenant_id, now_ms)

    def ended(self, life: Life, outcome: Outcome) -> None:
        """The client knows that it is over, whatever the reason."""
        require(life.outcome is None, f"{life.request.id} ended twice")
        life.outcome, life.ended_ms = outcome, self.events.at_ms
        is_whole = life.shown_tokens == life.output_tokens or not life.request.keeps_content
        require(
            is_whole or outcome is not Outcome.COMPLETED,
            f"{life.request.id} showed {life.shown_tokens} of {life.output_tokens} tokens",
        )
        require(
            self.may_fail or outcome is not Outcome.FAILED,
            f"{life.request.id} failed, though nothing broke",
        )
        self.open_count -= 1
        self.outcomes[outcome] += 1
        self.note(f"{outcome}", life.request.id)

    # --- what must hold -------------------------------------------------------------------------
    def check(self, cluster: SimCluster) -> None:
        """After every event."""
        check_places(cluster)
        self._checks += 1
        if self.every and self._checks % self.every == 0:
            check_everything(cluster, late_ms_max=self.tick_ms)

    def check_end(self) -> None:
        """When all is over: everything ended once, and the sharing was fair."""
        require(not self.open_count, f"{self.open_count} requests never ended")
        for (lane, model_id), windows in self.windows.items():
            require(
                windows.highest <= 1.0,
                f"unfair: {windows.highest:.2f} × the bound in {lane}, model {model_id}",
            )

    def certificate_max(self) -> float:
        """The worst window of any lane and model, by what was really served."""
        return max((windows.highest for windows in self.windows.values()), default=0.0)

    # --- inside ---------------------------------------------------------------------------------
    def _of(self, life: Life) -> ServiceWindows:
        key = (life.request.lane, life.request.model_id)
        windows = self.windows.get(key)
        if windows is None:
            windows = ServiceWindows(self.weight_of, self.window_ms)
            self.windows[key] = windows
        return windows

    def _served(self, life: Life, cost: float, now_ms: float) -> None:
        life.served_cost += cost
        self._of(life).served(life.request.tenant_id, cost, now_ms)
        if self.timeline is not None:
            self.timeline.served(life.request.tenant_id, cost, now_ms)
        if self.lane_timeline is not None:
            self.lane_timeline.served(life.request.lane, cost, now_ms)

    def _lands(self, life: Life, now_ms: float) -> None:
        flight = self._flying.pop(life.request.id, None)
        if flight is not None:
            self._of(life).flies(life.request.tenant_id, -flight.cost, now_ms)
            self.slot_ms += max(0.0, min(now_ms, self.span_ms) - flight.since_ms)

    def _require_wait_in_bounds(self, life: Life, now_ms: float) -> None:
        waited_ms = now_ms - life.queued_ms
        bound_ms = self.wait_ms_max[life.request.lane] + self.tick_ms + _NEARLY_MS
        require(
            waited_ms <= bound_ms, f"{life.request.id} waited {waited_ms:.0f} ms, past its bound"
        )
