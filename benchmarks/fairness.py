"""Is the sharing fair on real tenants' traffic, sped up until the pool can not keep up?

The simulator (`mantle.testing.sim_cluster`): the real scheduler, a virtual clock, engines on paper
(`replay.ACCELERATOR`). Three traces: the 27 clients of the LMSYS arena log in the VTC artifact, and
arrivals drawn from ServeGen's published clients (a reasoning and a language service). What is
served is counted from what clients saw, not from the scheduler's books.

How to read it.
`certificate_max`: the worst window of any run and lane, max|dW| / 2U over tenants backlogged in all
of it; both by the second count of the simulator and by the scheduler's own. Goal <= 1.
`jain_index`: of service for the weight among the tenants that were backlogged in all of a window
of 60 s, mean over the windows of the 27-client trace; `jain_index_by_trace` has the others.
`weighted_share_error`: two tenants, weights 4:1, one with long requests and one with short ones,
both backlogged: how far their shares are from 0.8 and 0.2, of 0.8. Goal <= 0.01.
`lone_tenant_share`: slot time that a lone tenant in Flex gets while it has work. Goal >= 0.99.
`flex_wait_max_s`: longest wait of a Flex request beside overload in the lanes above, in virtual
seconds, those that expired included; `flex_wait_bound_s` is the published bound.
`standard_floor_held`: every 10 s in which all lanes waited, Standard got its 20 % and Flex its 5 %
of what was served, to within one request (`..._min` are the lowest shares).
"""

import argparse
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from mantle.core.ids import TenantId
from mantle.core.lane import Lane
from mantle.scheduler.lane_order import DEFAULT_FLOORS
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules, default_bounds
from mantle.testing.sim_cluster.arrival import Arrival, sped_up
from mantle.testing.sim_cluster.replay import Pool, Replay, replay
from mantle.testing.sim_cluster.report import report_of
from mantle.testing.sim_cluster.traces import read_trace
from measure import print_result

ARENA = "vtc_lmsys_arena_27clients.csv"
REASONING = "servegen_reason_deepseek-r1_day0_rates.csv"
LANGUAGE = "servegen_language_m-small_day9_rates.csv"
# Queues as long as the traces make them: what is refused at the door can not be shared fairly.
WIDE = {
    lane: QueueBounds(10**7, 10**12, bound.wait_s_max) for lane, bound in default_bounds().items()
}
PATIENT = {lane: QueueBounds(10**7, 10**12, 10**6) for lane in Lane}
ALL_LANES = {Lane.PRIORITY: 0.45, Lane.STANDARD: 0.4, Lane.FLEX: 0.15}
WINDOW_S = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, required=True, help="folder with the traces")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, seed = options.trace, options.seed
    patient = SchedulerRules(bounds=PATIENT)
    arena = read_trace(folder / ARENA)
    reasoning = read_trace(folder / REASONING, seed=seed, seconds=300)
    language = read_trace(folder / LANGUAGE, seed=seed, seconds=10)
    runs = {
        "arena": overload(sped_up(arena, 10), Pool(1, 8, rules=patient), seed),
        "reasoning": overload(sped_up(reasoning, 2), Pool(8, 16, rules=patient), seed),
        "language": overload(sped_up(language, 2), Pool(4, 16, rules=patient), seed),
    }
    mixed = Pool(1, 16, rules=SchedulerRules(bounds=WIDE), lanes=ALL_LANES)
    lanes = replay(sped_up(arena, 10), mixed, seed=seed)
    floors = floor_run(arena, seed)
    weighted = weighted_run(seed)
    certificates = [certificate(run) for run in [*runs.values(), lanes, floors, weighted]]
    jain = {name: report_of(run).jain_index for name, run in runs.items()}
    print_result(
        {
            "certificate_max": max(max(pair) for pair in certificates),
            "certificate_max_own": max(own for _, own in certificates),
            "jain_index": jain["arena"],
            "jain_index_by_trace": jain,
            "weighted_share_error": share_error(weighted),
            "lone_tenant_share": lone_share(arena, seed),
            "flex_wait_max_s": flex_wait_max_s(lanes),
            "flex_wait_bound_s": WIDE[Lane.FLEX].wait_s_max,
            **floor_result(floors),
            "runs": {name: outline(run) for name, run in runs.items()},
            "seed": seed,
        }
    )


def overload(arrivals: list[Arrival], pool: Pool, seed: int) -> Replay:
    return replay(arrivals, pool, seed=seed, window_ms=60_000.0)


def certificate(run: Replay) -> tuple[float, float]:
    """By the simulator's count and by the scheduler's."""
    own = run.watcher.scheduler.accounts.certificates().values()
    return run.watcher.certificate_max(), max(c.highest for c in own)


def outline(run: Replay) -> dict[str, Any]:
    report = report_of(run)
    return {
        "requests": report.requests,
        "tenants": len(report.tenants),
        "accelerators": run.pool.accelerators,
        "slots": run.pool.slots,
        "arrive_within_s": report.span_s,
        "served_within_s": report.end_s,
        "windows_compared": report.windows_compared,
        "parks": sum(line.parks for line in report.tenants),
    }


def at_once(arrivals: list[Arrival]) -> list[Arrival]:
    return [replace(arrival, at_ms=0.0) for arrival in arrivals]


# --- shares by weight ---------------------------------------------------------------------------
def weighted_run(seed: int) -> Replay:
    """`heavy` (weight 4) sends long requests, `light` short ones, more than enough of both."""
    heavy = [Arrival(0.0, "heavy", 2_000, 400) for _ in range(4_000)]
    light = [Arrival(0.0, "light", 100, 50) for _ in range(16_000)]
    pool = Pool(2, 16, rules=SchedulerRules(bounds=PATIENT), weights={TenantId("heavy"): 4.0})
    return replay([*heavy, *light], pool, seed=seed)


def share_error(run: Replay) -> float:
    """Measured from the start until the first of the two has nothing waiting any more."""
    until_ms = min(last_dispatch_ms(run, tenant) for tenant in ("heavy", "light"))
    slices = int(until_ms // run.timeline.slice_ms)
    heavy = run.timeline.cumulative("heavy", slices)[-1]
    light = run.timeline.cumulative("light", slices)[-1]
    return abs(heavy / (heavy + light) - 0.8) / 0.8


def last_dispatch_ms(run: Replay, tenant: str) -> float:
    return max(
        life.first_dispatch_ms or 0.0
        for life in run.watcher.lives
        if life.request.tenant_id == tenant
    )


# --- a lone tenant ------------------------------------------------------------------------------
def lone_share(arrivals: list[Arrival], seed: int) -> float:
    """Slot time used until its last request starts."""
    lone = [replace(arrival, tenant="lone", at_ms=0.0) for arrival in arrivals]
    pool = Pool(1, 16, rules=SchedulerRules(bounds=PATIENT), lanes={Lane.FLEX: 1.0})
    run = replay(lone, pool, seed=seed)
    lives = run.watcher.lives
    assert sum(life.parks for life in lives) == 0, "nobody is there to park it for"
    starts = [life.first_dispatch_ms or 0.0 for life in lives]
    until_ms = max(starts)
    used = sum(
        min(life.ended_ms, until_ms) - start for life, start in zip(lives, starts, strict=True)
    )
    return used / (until_ms * pool.accelerators * pool.slots)


# --- lanes --------------------------------------------------------------------------------------
def flex_wait_max_s(run: Replay) -> float:
    return (
        max(
            (life.ended_ms if life.first_dispatch_ms is None else life.first_dispatch_ms)
            - life.request.accepted_ms
            for life in run.watcher.lives
            if life.request.lane is Lane.FLEX
        )
        / 1e3
    )


def floor_run(arrivals: list[Arrival], seed: int) -> Replay:
    """All at once, so that each lane waits until its last request starts."""
    pool = Pool(1, 16, rules=SchedulerRules(bounds=PATIENT), lanes=ALL_LANES)
    return replay([*at_once(arrivals)] * 3, pool, seed=seed)


def floor_result(run: Replay) -> dict[str, Any]:
    last_ms = dict.fromkeys(ALL_LANES, 0.0)
    for life in run.watcher.lives:
        lane = life.request.lane
        last_ms[lane] = max(last_ms[lane], life.first_dispatch_ms or 0.0)
    waits_until_ms = min(last_ms.values())
    seconds = int(waits_until_ms // 1_000)
    sums = {lane: run.lane_timeline.cumulative(lane, seconds) for lane in ALL_LANES}
    largest = max(life.served_cost for life in run.watcher.lives)
    lowest = dict.fromkeys(DEFAULT_FLOORS, 1.0)
    held = True
    for start, end in zip(range(seconds), itertools.count(WINDOW_S), strict=False):
        if end >= seconds:
            break
        served = {lane: values[end] - values[start] for lane, values in sums.items()}
        total = sum(served.values())
        for lane, floor in DEFAULT_FLOORS.items():
            lowest[lane] = min(lowest[lane], served[lane] / total)
            held = held and served[lane] + largest >= floor * total
    return {
        "standard_floor_held": held,
        **{f"{lane}_floor_min": share for lane, share in lowest.items()},
        "floor_windows": max(0, seconds - WINDOW_S),
        "largest_request_cost": largest,
    }


if __name__ == "__main__":
    main()
