"""What would a pool have made of this traffic? A trace through the real scheduler, at any size.

The replicas are installed from the start and stay: one model, one replica an accelerator. What
traces do not say is filled in: the lane, by seed and `LaneMix`; `max_tokens`, the next power of
two. A request longer than the window is cut to it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mantle.core.ids import ModelId, ReplicaId, TenantId, WorkerId
from mantle.core.lane import Lane
from mantle.scheduler.rules import SchedulerRules
from mantle.scheduler.scheduler import Scheduler
from mantle.scheduler.wait_estimate import OnWaitOver, unjudged
from mantle.testing.sim_cluster.arrival import Arrival
from mantle.testing.sim_cluster.cluster import PaperModel, SimCluster
from mantle.testing.sim_cluster.cost_model import CostModel
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.paper_engine import PaperEngine
from mantle.testing.sim_cluster.paper_request import Ask
from mantle.testing.sim_cluster.paper_worker import PaperWorker
from mantle.testing.sim_cluster.timeline import Timeline
from mantle.testing.sim_cluster.watcher import Watcher

MODEL = ModelId("paper")
TICK_MS = 200.0
REPORT_TOKENS = 64
ACCELERATOR = CostModel(prefill_tokens_per_s=20_000.0, step_ms=8.0, step_ms_a_sequence=0.15)
LaneMix = Mapping[Lane, float]


@dataclass(frozen=True, slots=True)
class Pool:
    """What the traffic meets. `weights`: tenants not named weigh 1."""

    accelerators: int
    slots: int = 32
    kv_tokens: int = 400_000
    window_tokens: int = 131_072
    cost: CostModel = ACCELERATOR
    rules: SchedulerRules = field(default_factory=SchedulerRules)
    weights: Mapping[TenantId, float] = field(default_factory=dict)
    lanes: LaneMix = field(default_factory=lambda: {Lane.STANDARD: 1.0})

    def weight_of(self, tenant_id: TenantId) -> float:
        return self.weights.get(tenant_id, 1.0)


@dataclass(frozen=True, slots=True)
class Replay:
    """A run that is over. `span_ms`: until the last arrival; what came later is the tail."""

    pool: Pool
    watcher: Watcher
    timeline: Timeline
    lane_timeline: Timeline
    span_ms: float
    end_ms: float


def replay(
    arrivals: Sequence[Arrival],
    pool: Pool,
    *,
    seed: int = 0,
    window_ms: float = 10_000.0,
    on_wait_over: OnWaitOver = unjudged,
) -> Replay:
    """Run the traffic to its end. Raises `InvariantBroken` as soon as a promise is."""
    events = EventQueue()
    scheduler = Scheduler(pool.rules, weight_of=pool.weight_of, on_wait_over=on_wait_over)
    bounds = pool.rules.bounds
    span_ms = max((arrival.at_ms for arrival in arrivals), default=0.0)
    timeline = Timeline(max(1_000.0, span_ms / 300))
    lane_timeline = Timeline(1_000.0)
    watcher = Watcher(
        events,
        scheduler,
        pool.weight_of,
        {lane: bound.wait_s_max * 1e3 for lane, bound in bounds.items()},
        TICK_MS,
        every=0,
        cost=pool.rules.cost,
        window_ms=window_ms,
        span_ms=span_ms,
        timeline=timeline,
        lane_timeline=lane_timeline,
    )
    model = PaperModel(MODEL, 0, pool.slots, pool.kv_tokens, pool.window_tokens)
    cluster = SimCluster(
        events, scheduler, {MODEL: model}, pool.cost, watcher, placement=None, tick_ms=TICK_MS
    )
    _install(cluster, pool)
    rng = random.Random(seed)
    _Feed(cluster, [_ask(arrival, pool, rng) for arrival in arrivals]).next()
    while events.run_next():
        pass
    watcher.check_end()
    return Replay(pool, watcher, timeline, lane_timeline, span_ms, events.at_ms)


@dataclass(slots=True)
class _Feed:
    """Hands the asks to the cluster one by one, so that the event queue stays small."""

    cluster: SimCluster
    asks: Sequence[Ask]
    index: int = 0

    def next(self) -> None:
        if self.index < len(self.asks):
            self.cluster.events.at(self.asks[self.index].at_ms, self._arrive)

    def _arrive(self) -> None:
        ask = self.asks[self.index]
        self.index += 1
        self.next()
        self.cluster.arrive(ask)


def _install(cluster: SimCluster, pool: Pool) -> None:
    for index in range(pool.accelerators):
        worker = PaperWorker(
            WorkerId(f"w{index}"),
            cluster,
            cluster.events,
            random.Random(index),
            lambda _: PaperEngine(pool.cost, pool.slots, pool.kv_tokens, REPORT_TOKENS),
            lambda _: 0.0,
        )
        cluster.install(worker, ReplicaId(f"{MODEL}#{index}"), MODEL)


def _ask(arrival: Arrival, pool: Pool, rng: random.Random) -> Ask:
    lanes = list(pool.lanes)
    lane = rng.choices(lanes, [pool.lanes[lane] for lane in lanes])[0]
    longest = pool.window_tokens // 2
    output_tokens = min(arrival.output_tokens, longest)
    max_output_tokens = min(longest, max(16, 1 << (output_tokens - 1).bit_length()))
    return Ask(
        arrival.at_ms,
        TenantId(arrival.tenant),
        MODEL,
        lane,
        min(arrival.input_tokens, pool.window_tokens - max_output_tokens),
        output_tokens,
        max_output_tokens,
    )
