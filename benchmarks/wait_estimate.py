"""How good is the wait that a request is told when it begins to wait?

The simulator (`mantle.testing.sim_cluster`): the real scheduler, a virtual clock, engines on paper.
By default twelve tenants whose load swings around what one accelerator can do, so that queues build
up and empty again: Poisson arrivals, log-normal prompts and answers, lanes by `LANES`. `--trace`
takes a public trace in its place (any that `mantle simulate` reads); choose `--accelerators`,
`--slots` and `--speedup` so that it has to wait.

How to read it. Judged is each first wait of over a second that had an estimate when it began. The
estimate knows nothing of the future: a lane above that fills up later makes it wrong, and so does
one that empties.
`estimate_error_p50`, `estimate_error_p90`: |estimated - actual| / actual. No goal yet.
`estimate_bias`: mean estimated / mean actual - 1: below 0 they wait longer than told.
`judged`, `unknown`: such waits with and without an estimate (before any pace was measured).
`by_lane`: the same figures a lane; `wait_s_p50`, `wait_s_p90` are the real waits.
"""

import argparse
import math
import random
from pathlib import Path
from typing import Any

from mantle.core.ids import ModelId
from mantle.core.lane import Lane
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules
from mantle.testing.sim_cluster.arrival import Arrival, sped_up
from mantle.testing.sim_cluster.replay import Pool, replay
from mantle.testing.sim_cluster.report import report_of
from mantle.testing.sim_cluster.traces import read_trace
from measure import percentile, print_result

PATIENT = {lane: QueueBounds(10**7, 10**12, 10**6) for lane in Lane}
LANES = {Lane.PRIORITY: 0.1, Lane.STANDARD: 0.7, Lane.FLEX: 0.2}
WAIT_MS_MIN = 1_000.0
TENANTS = 12
SPAN_S = 1_200.0
SWING_S = 240.0  # from too little load to too much and back
REQUESTS_A_S = 6.0  # about what the pool below can do, of the sizes below

Judged = tuple[Lane, float, float]
"""Lane, estimated and real wait in milliseconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, help="a trace's file; default: synthetic load")
    parser.add_argument("--seconds", type=float, help="only so much of the trace")
    parser.add_argument("--speedup", type=float, default=1.0, help="play it so many times as fast")
    parser.add_argument("--accelerators", type=int, default=1)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.trace is None:
        arrivals = synthetic(random.Random(options.seed))
    else:
        trace = read_trace(options.trace, seed=options.seed, seconds=options.seconds)
        arrivals = sped_up(trace, options.speedup)
    rules = SchedulerRules(bounds=PATIENT)
    pool = Pool(options.accelerators, options.slots, rules=rules, lanes=LANES)
    judged: list[Judged] = []

    def on_over(lane: Lane, _model: ModelId, estimated_ms: float, waited_ms: float) -> None:
        if waited_ms > WAIT_MS_MIN:
            judged.append((lane, estimated_ms, waited_ms))

    run = replay(arrivals, pool, seed=options.seed, on_wait_over=on_over)
    report = report_of(run)
    waits = [
        life.first_dispatch_ms - life.request.accepted_ms
        for life in run.watcher.lives
        if life.first_dispatch_ms is not None
    ]
    waited = sum(1 for wait_ms in waits if wait_ms > WAIT_MS_MIN)
    assert judged, "nothing had to wait: less hardware, or more load"
    print_result(
        {
            **figures(judged),
            "unknown": waited - len(judged),
            "by_lane": {
                lane: figures([one for one in judged if one[0] is lane])
                for lane in LANES
                if any(one[0] is lane for one in judged)
            },
            "requests": report.requests,
            "tenants": len(report.tenants),
            "utilisation": report.utilisation,
            "parks": sum(line.parks for line in report.tenants),
            "span_s": report.span_s,
            "options": {**vars(options), "trace": options.trace and options.trace.name},
        }
    )


def figures(judged: list[Judged]) -> dict[str, Any]:
    errors = [abs(estimated - waited) / waited for _, estimated, waited in judged]
    waits = [waited for _, _, waited in judged]
    return {
        "estimate_error_p50": percentile(errors, 50),
        "estimate_error_p90": percentile(errors, 90),
        "estimate_bias": sum(estimated for _, estimated, _ in judged) / sum(waits) - 1,
        "judged": len(judged),
        "wait_s_p50": percentile(waits, 50) / 1e3,
        "wait_s_p90": percentile(waits, 90) / 1e3,
    }


def synthetic(rng: random.Random) -> list[Arrival]:
    """Load that swings between half and one and a half times of what can be done."""
    arrivals: list[Arrival] = []
    now_s = 0.0
    while now_s < SPAN_S:
        load = 1.0 + 0.5 * math.sin(2 * math.pi * now_s / SWING_S)
        now_s += rng.expovariate(REQUESTS_A_S * load)
        tenant = min(int(rng.expovariate(0.25)), TENANTS - 1)  # some ask far more than others
        input_tokens = min(8_000, max(1, int(rng.lognormvariate(6.2, 1.0))))
        output_tokens = min(2_000, max(1, int(rng.lognormvariate(5.0, 0.8))))
        arrivals.append(Arrival(now_s * 1e3, f"t{tenant}", input_tokens, output_tokens))
    return arrivals


if __name__ == "__main__":
    main()
