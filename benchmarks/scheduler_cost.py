"""What does one scheduling decision cost, and how does it grow with the number of waiting tenants?

The real scheduler alone, in a steady state: as many tenants as said have a request waiting, and all
slots of a pool are taken. A decision is one `released`: a request ends, its accounts are settled,
the next lane, tenant and request are chosen, a replica with room is found, and it is charged. An
entry is one `submit` to the full pool: it is queued, and it is decided who gives way, if anybody.
Each is timed by itself. A tenant that was served asks again, so as many wait all the time.

`decision_us_p50_1e5`: microseconds, median, 10⁵ tenants waiting. Goal <= 20, and O(log n): the
growth from 10² to 10⁵ (`growth_1e2_to_1e5`) stays small. The p99 contains what is rare: a window of
the certificate that closes (`decision_us_max_1e5` shows one), garbage collection. Nothing is left
out. `parks` counts attempts that gave way during the entries.
"""

import argparse
import time
from typing import Any

from mantle.core.ids import ModelId, ProjectId, ReplicaId, RequestId, TenantId
from mantle.core.lane import Lane
from mantle.core.request import Request
from mantle.core.sampling import SamplingParams
from mantle.scheduler.capacity import ReplicaCapacity
from mantle.scheduler.effects import Dispatch, Park
from mantle.scheduler.scheduler import Scheduler
from measure import percentile, print_result

MODEL = ModelId("m")
SAMPLING = SamplingParams()
PROMPT = tuple(range(100))
OUTPUT_TOKENS = 100
MS_A_DECISION = 0.5  # of virtual time: 2,000 decisions a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--decisions", type=int, default=20_000, help="timed, at each size")
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--slots", type=int, default=16)
    options = parser.parse_args()
    sizes = {name: measured(tenants, options) for name, tenants in SIZES.items()}
    result: dict[str, Any] = {
        f"{what}_us_p{percent}_{name}": percentile(times, percent)
        for name, by_kind in sizes.items()
        for what, times in by_kind.items()
        for percent in (50, 99, 100)
    }
    result = {key.replace("_p100_", "_max_"): value for key, value in result.items()}
    growth = result["decision_us_p50_1e5"] / result["decision_us_p50_1e2"]
    print_result({**result, "growth_1e2_to_1e5": growth, "options": vars(options)})


SIZES = {"1e2": 100, "1e4": 10_000, "1e5": 100_000}


def measured(tenants: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of each decision and each entry."""
    steady = SteadyState(tenants, replicas=options.replicas, slots=options.slots)
    for _ in range(options.decisions // 10):  # warm up
        steady.turn()
    times: dict[str, list[float]] = {"decision": [], "entry": []}
    for _ in range(options.decisions):
        decision_s, entry_s = steady.turn()
        times["decision"].append(decision_s * 1e6)
        times["entry"].append(entry_s * 1e6)
    return times


class SteadyState:
    """A full pool and a full queue; one turn ends the oldest running request and asks again."""

    def __init__(self, tenants: int, *, replicas: int, slots: int) -> None:
        self.scheduler = Scheduler()
        self.now_ms = 0.0
        self.parks = 0
        self._asked = 0
        self._tenant_of: dict[RequestId, TenantId] = {}
        for index in range(replicas):
            capacity = ReplicaCapacity(ReplicaId(f"m#{index}"), MODEL, slots, slots * 1_000, 1_000)
            self.scheduler.replica_ready(capacity, 0.0)
        self._running: list[RequestId] = []  # in order of their start
        self._next = 0
        names = [TenantId(f"t{index}") for index in range(tenants)]
        for index in range(tenants + replicas * slots):
            self._perform(self.scheduler.submit([self._request(names[index % tenants])], 0.0))

    def turn(self) -> tuple[float, float]:
        """Seconds that a decision and an entry took."""
        while self.scheduler.residents.find(self._running[self._next]) is None:
            self._next += 1  # it was parked
        request_id = self._running[self._next]
        self.now_ms += MS_A_DECISION
        self.scheduler.tokens_produced(
            request_id, count=OUTPUT_TOKENS, cached_tokens=0, now_ms=self.now_ms
        )
        request = self._request(self._tenant_of.pop(request_id))
        started_s = time.perf_counter()
        effects = self.scheduler.released(request_id, self.now_ms)
        decided_s = time.perf_counter()
        self._perform(effects)
        asked_s = time.perf_counter()
        effects = self.scheduler.submit([request], self.now_ms)
        entered_s = time.perf_counter()
        self._perform(effects)
        return decided_s - started_s, entered_s - asked_s

    def _request(self, tenant_id: TenantId) -> Request:
        self._asked += 1
        request_id = RequestId(f"r{self._asked}")
        self._tenant_of[request_id] = tenant_id
        return Request(
            request_id,
            tenant_id,
            ProjectId("default"),
            MODEL,
            Lane.STANDARD,
            PROMPT,
            SAMPLING,
            OUTPUT_TOKENS,
            self.now_ms,
        )

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self._running.append(effect.request_id)
            elif isinstance(effect, Park):
                self.parks += 1
                self._perform(self.scheduler.parked(effect.request_id, self.now_ms))


if __name__ == "__main__":
    main()
