"""Does a tenant get the capacity it bought when everybody else comes at once?

The simulator (`mantle.testing.sim_cluster`): the real scheduler and the real bought rates
(`admission.reservation`), a virtual clock, one engine on paper. A buyer has a fifth of the decode
speed of the full engine and a tenth of its prefill speed. At `BURST_S` twenty others send more than
the engine can do in `BURST_LENGTH_S`, in Priority, Standard and Flex; before, a lone borrower
fills all slots in Flex.

How to read it.
`reserve_delivered`: tokens that the buyer got in Reserved during the burst, of what it bought for
that time; the smaller one of input and output, and of two runs: `steady` asks for exactly what was
bought, `greedy` for half as much again, after having used up its quiet minute. Goal >= 0.99.
`greedy_reserved_share`: output in Reserved of the greedy run, of all it asked for in that time:
the rest went to Standard and was served there, or still waits.
`reclaim_ms_p99`: by how much a lent slot delays the first token of a Reserved request: from its
arrival to its first token during the burst, less the median of the same without the others. The
slot itself comes with one park, at once; what is left is the prompt that the engine on paper is
just prefilling (1,000 tokens take it 50 ms, and it finishes them). `ttft_ms_p99` and
`ttft_alone_ms_p50` are the two.
`lent_share`: part of all that was served in the burst that others got: nothing is held idle.
"""

import argparse
import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mantle.admission.reservation import ReservedHold, ReservedRates
from mantle.core.ids import ReplicaId, TenantId, WorkerId
from mantle.core.lane import Lane
from mantle.core.outcome import Outcome
from mantle.core.tenant import Reservation, Tenant
from mantle.core.tokens import Usage
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.cluster import PaperModel, SimCluster
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.paper_engine import PaperEngine
from mantle.testing.sim_cluster.paper_request import Ask, Life
from mantle.testing.sim_cluster.paper_worker import PaperWorker
from mantle.testing.sim_cluster.replay import ACCELERATOR, MODEL
from mantle.testing.sim_cluster.watcher import Watcher
from measure import median, percentile, print_result

SLOTS = 32
BUYER = TenantId("buyer")
INPUT_TOKENS, OUTPUT_TOKENS, MAX_TOKENS = 400, 100, 128
PER_S = 5.0  # requests that the reservation pays for
BURST_S, BURST_LENGTH_S = 120, 120
TICK_MS = 50.0
REPORT_TOKENS = 1  # first tokens are told at once
BOUGHT = Reservation(MODEL, round(INPUT_TOKENS * PER_S * 60), round(OUTPUT_TOKENS * PER_S * 60))
TENANT = Tenant(BUYER, reservations=(BOUGHT,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    alone = run(buyer_asks(1.0, seed), seed)
    steady = run([*buyer_asks(1.0, seed), *others(seed)], seed)
    greedy = run([*buyer_asks(1.5, seed), *others(seed)], seed)
    alone_ms = median(alone.first_token_waits_ms())
    under_ms = [*steady.first_token_waits_ms(), *greedy.first_token_waits_ms()]
    shares = {"steady": steady.delivered(), "greedy": greedy.delivered()}
    print_result(
        {
            "reserve_delivered": min(min(pair) for pair in shares.values()),
            "delivered_input_output": shares,
            "reclaim_ms_p99": percentile(under_ms, 99) - alone_ms,
            "reclaim_ms_p50": percentile(under_ms, 50) - alone_ms,
            "ttft_ms_p99": percentile(under_ms, 99),
            "ttft_alone_ms_p50": alone_ms,
            "ttft_alone_ms_p99": percentile(alone.first_token_waits_ms(), 99),
            "greedy_reserved_share": greedy.reserved_share(),
            "steady_reserved_share": steady.reserved_share(),
            "lent_share": steady.others_share(),
            "parks": steady.parks(),
            "requests_during_burst": len(under_ms),
            "bought": {
                "input_tokens_per_min": BOUGHT.input_tokens_per_min,
                "output_tokens_per_min": BOUGHT.output_tokens_per_min,
            },
            "seed": seed,
        }
    )


# --- traffic ------------------------------------------------------------------------------------
def buyer_asks(times: float, seed: int) -> list[Ask]:
    """Even arrivals with some jitter; who is greedy is out of credit when the burst comes."""
    rng = random.Random(seed)
    gap_ms = 1_000 / (PER_S * times)
    count = int((BURST_S + BURST_LENGTH_S + 20) * 1_000 / gap_ms)
    return [
        ask(index * gap_ms + rng.uniform(0, gap_ms / 2), BUYER, Lane.STANDARD, INPUT_TOKENS,
            OUTPUT_TOKENS, MAX_TOKENS)
        for index in range(count)
    ]  # fmt: skip


def others(seed: int) -> list[Ask]:
    """A borrower from the start; then twenty tenants at once, and again every ten seconds."""
    rng = random.Random(seed + 1)
    asks = [
        ask(index * 250.0, TenantId("borrower"), Lane.FLEX, 500, 800, 1_024)
        for index in range(BURST_S * 4)
    ]
    for wave in range(BURST_S, BURST_S + BURST_LENGTH_S, 10):
        for number in range(20):
            lane = (Lane.PRIORITY, Lane.STANDARD, Lane.FLEX)[number % 3]
            for _ in range(6):
                output_tokens = rng.randint(100, 500)
                asks.append(
                    ask(wave * 1e3, TenantId(f"o{number}"), lane, 1_000, output_tokens, 512)
                )
    return asks


def ask(at_ms: float, tenant_id: TenantId, lane: Lane, inputs: int, outputs: int, most: int) -> Ask:
    return Ask(at_ms, tenant_id, MODEL, lane, inputs, outputs, most)


# --- one run ------------------------------------------------------------------------------------
@dataclass(slots=True)
class EventClock:
    """The event queue's time, for admission."""

    events: EventQueue

    def now_ms(self) -> float:
        return self.events.at_ms

    def wall_s(self) -> float:
        return self.events.at_ms / 1e3


class CountingWatcher(Watcher):
    """Also counts the buyer's tokens in Reserved, and settles what its requests held."""

    def ready(self) -> None:
        self.holds: dict[str, ReservedHold] = {}
        self.reserved_input = self.reserved_output = self.served = self.served_others = 0.0

    def _served(self, life: Life, cost: float, now_ms: float) -> None:
        super()._served(life, cost, now_ms)
        if BURST_S <= now_ms / 1e3 < BURST_S + BURST_LENGTH_S:
            self.served += cost
            self.served_others += cost if life.request.tenant_id != BUYER else 0.0

    def progressed(self, life: Life, progress: Any, now_ms: float) -> None:
        is_first = life.written_tokens == 0
        super().progressed(life, progress, now_ms)
        in_burst = BURST_S <= now_ms / 1e3 < BURST_S + BURST_LENGTH_S
        if life.request.lane is Lane.RESERVED and in_burst:
            self.reserved_output += progress.count
            self.reserved_input += len(life.request.prompt_tokens) if is_first else 0

    def ended(self, life: Life, outcome: Outcome) -> None:
        super().ended(life, outcome)
        hold = self.holds.pop(life.request.id, None)
        if hold is not None:
            hold.settle(Usage(len(life.request.prompt_tokens), 0, life.shown_tokens))


@dataclass(slots=True)
class Run:
    """One run, over."""

    watcher: CountingWatcher

    def delivered(self) -> tuple[float, float]:
        minutes = BURST_LENGTH_S / 60
        return (
            self.watcher.reserved_input / (BOUGHT.input_tokens_per_min * minutes),
            self.watcher.reserved_output / (BOUGHT.output_tokens_per_min * minutes),
        )

    def first_token_waits_ms(self) -> list[float]:
        return [
            life.first_token_ms - life.request.accepted_ms
            for life in self._in_burst()
            if life.request.lane is Lane.RESERVED and life.first_token_ms is not None
        ]

    def reserved_share(self) -> float:
        lanes = [life.request.lane for life in self._in_burst()]
        return lanes.count(Lane.RESERVED) / len(lanes)

    def others_share(self) -> float:
        return self.watcher.served_others / self.watcher.served

    def parks(self) -> int:
        return sum(life.parks for life in self.watcher.lives)

    def _in_burst(self) -> Iterator[Life]:
        for life in self.watcher.lives:
            at_s = life.request.accepted_ms / 1e3
            if life.request.tenant_id == BUYER and BURST_S <= at_s < BURST_S + BURST_LENGTH_S:
                yield life


def run(asks: list[Ask], seed: int) -> Run:
    """Admission on the bought rates, then the cluster, until all asks have ended."""
    events = EventQueue()
    scheduler = Scheduler()
    watcher = CountingWatcher(
        events, scheduler, lambda _: 1.0, dict.fromkeys(Lane, 3.6e6), TICK_MS, every=0
    )
    watcher.ready()
    model = PaperModel(MODEL, 0, SLOTS, 400_000, 131_072)
    cluster = SimCluster(
        events, scheduler, {MODEL: model}, ACCELERATOR, watcher, placement=None, tick_ms=TICK_MS
    )
    worker = PaperWorker(
        WorkerId("w0"), cluster, events, random.Random(seed),
        lambda _: PaperEngine(ACCELERATOR, SLOTS, 400_000, REPORT_TOKENS), lambda _: 0.0,
    )  # fmt: skip
    cluster.install(worker, ReplicaId("paper#0"), MODEL)
    rates = ReservedRates(EventClock(events))
    for one in sorted(asks, key=lambda one: one.at_ms):
        events.at(one.at_ms, functools.partial(enter, one, cluster, watcher, rates))
    while events.run_next():
        pass
    watcher.check_end()
    return Run(watcher)


def enter(one: Ask, cluster: SimCluster, watcher: CountingWatcher, rates: ReservedRates) -> None:
    """As `Admission.enter` does: Reserved while within what was bought, else as asked."""
    if one.tenant_id != BUYER:
        cluster.arrive(one)
        return
    holds = rates.take(
        TENANT, MODEL, input_tokens=one.input_tokens, max_output_tokens=one.max_output_tokens
    )
    if holds is None:
        cluster.arrive(one)
        return
    before = len(watcher.lives)
    reserved = Ask(
        one.at_ms, BUYER, MODEL, Lane.RESERVED, one.input_tokens, one.output_tokens,
        one.max_output_tokens,
    )  # fmt: skip
    cluster.arrive(reserved)
    assert len(watcher.lives) == before + 1, "its queue has room"
    watcher.holds[watcher.lives[-1].request.id] = holds[0]


if __name__ == "__main__":
    main()
