"""What is one small world? Tenants, models, machines, arrivals and mishaps, all from one seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from mantle.core.ids import ModelId, TenantId, WorkerId
from mantle.core.lane import Lane
from mantle.pool.placement import PlacementRules
from mantle.scheduler.preemption import ParkingRules
from mantle.scheduler.queues import QueueBounds
from mantle.scheduler.rules import SchedulerRules
from mantle.testing.sim_cluster.cluster import PaperModel
from mantle.testing.sim_cluster.cost_model import CostModel
from mantle.testing.sim_cluster.mishaps import Mishap, random_mishaps
from mantle.testing.sim_cluster.paper_request import Ask
from mantle.testing.sim_cluster.paper_worker import LinkDelays
from mantle.testing.sim_cluster.server_mishaps import ServerMishap, random_server_mishaps

GIB = 1 << 30
_LANES = (Lane.PRIORITY, Lane.STANDARD, Lane.FLEX)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run depends on."""

    seed: int
    rules: SchedulerRules
    placement: PlacementRules
    weights: Mapping[TenantId, float]
    models: Mapping[ModelId, PaperModel]
    budgets: Mapping[WorkerId, int]
    cost: CostModel
    delays: LinkDelays
    report_tokens: int
    commit_ms: tuple[float, float]
    asks: tuple[Ask, ...]
    mishaps: tuple[Mishap, ...]
    server_mishaps: tuple[ServerMishap, ...]

    @property
    def may_fail(self) -> bool:
        """Whether a request may fail for no fault of the scheduler."""
        too_slow = any(
            self.cost.load_ms(model.size_bytes) > self.placement.load_s_max * 1e3
            for model in self.models.values()
        )
        mishaps = bool(self.mishaps or self.server_mishaps)
        return too_slow or mishaps or self.delays.late_one_in > 0

    def summary(self) -> str:
        """One line a part, for people."""
        weights = ", ".join(f"{t} (weight {w:g})" for t, w in self.weights.items())
        models = "\n".join(f"  {model}" for model in self.models.values())
        every_mishap = (*self.mishaps, *self.server_mishaps)
        mishaps = "\n".join(f"  {mishap}" for mishap in every_mishap) or "  none"
        return (
            f"seed {self.seed}: {len(self.asks)} asks of {weights}\nmodels\n{models}\n"
            f"workers {dict(self.budgets)}\n{self.rules}\n{self.placement}\n{self.cost}\n"
            f"{self.delays}, a report every {self.report_tokens} tokens\n"
            f"commits take {self.commit_ms} ms\nmishaps\n{mishaps}"
        )


def random_scenario(seed: int) -> Scenario:
    """The world of this seed, always the same one."""
    rng = random.Random(seed)
    models = {model.id: model for model in _random_models(rng)}
    workers = rng.randint(1, 3)
    largest = max(model.size_bytes for model in models.values())
    budgets = {WorkerId(f"w{i}"): largest * rng.randint(1, 2) for i in range(workers)}
    tenants = [TenantId(name) for name in "abcdef"[: rng.choice((1, 2, 2, 3, 3, 4, 6))]]
    span_ms = rng.choice((5_000.0, 20_000.0, 40_000.0))
    is_contest = rng.random() < 0.4
    asks = _random_asks(rng, tenants, list(models.values()), span_ms, is_contest=is_contest)
    is_calm = rng.random() < 0.4
    of_server = random.Random(f"{seed} server")
    return Scenario(
        seed=seed,
        rules=_random_rules(rng, is_contest=is_contest),
        placement=PlacementRules(
            residency_s_min=rng.choice((0.1, 1.0, 2.0)),
            swap_wait_s_max=rng.choice((0.2, 2.0, 5.0)),
            load_s_max=rng.choice((1.0, 30.0, 30.0, 30.0, 30.0)),
            load_retry_s_min=rng.choice((0.5, 5.0)),
        ),
        weights={tenant: rng.choice((1.0, 1.0, 2.0, 4.0)) for tenant in tenants},
        models=models,
        budgets=budgets,
        cost=CostModel(
            prefill_tokens_per_s=rng.choice((1_000.0, 5_000.0)),
            step_ms=rng.choice((5.0, 20.0)),
            step_ms_a_sequence=rng.choice((0.0, 2.0)),
            load_gb_per_s=rng.choice((2.0, 20.0)),
        ),
        delays=LinkDelays() if is_calm else LinkDelays(0.2, rng.choice((20.0, 500.0)), 20),
        report_tokens=rng.choice((1, 4, 4, 8, 8, 16, 32, 32)),
        commit_ms=of_server.choice(((0.1, 4.0), (5.0, 40.0), (20.0, 100.0))),
        asks=asks,
        mishaps=() if is_calm else random_mishaps(rng, list(budgets), span_ms),
        server_mishaps=() if is_calm else random_server_mishaps(of_server, span_ms),
    )


def _random_models(rng: random.Random) -> list[PaperModel]:
    count = rng.choice((1, 1, 1, 2, 3))
    models: list[PaperModel] = []
    for index in range(count):
        slots = rng.randint(1, 6)
        window_tokens = rng.choice((400, 1_000))
        kv_tokens = round(window_tokens * rng.uniform(1.0, slots))
        size_bytes = rng.randint(1, 4) * GIB
        models.append(PaperModel(ModelId(f"m{index}"), size_bytes, slots, kv_tokens, window_tokens))
    return models


def _random_rules(rng: random.Random, *, is_contest: bool) -> SchedulerRules:
    bounds = {
        lane: QueueBounds(
            requests_max=rng.choice((5, 2_000)), wait_s_max=rng.choice((2.0, 20.0, 300.0))
        )
        for lane in Lane
    }
    if is_contest:
        bounds = {lane: QueueBounds(wait_s_max=600.0) for lane in Lane}
    parking = ParkingRules(
        enabled=rng.random() < 0.8,
        run_ms_min=rng.choice((0.0, 250.0)),
    )
    return SchedulerRules(bounds=bounds, parking=parking)


def _random_asks(
    rng: random.Random,
    tenants: list[TenantId],
    models: list[PaperModel],
    span_ms: float,
    *,
    is_contest: bool,
) -> tuple[Ask, ...]:
    """Each tenant has its habits: a burst, a steady stream, or on and off.

    In a contest all want much at once in one lane, so that they wait long beside each other.
    """
    asks: list[Ask] = []
    budget = rng.choice((60, 90)) if is_contest else rng.choice((15, 40, 90))
    arena = [rng.choice(_LANES)]
    for tenant_id in tenants:
        lanes = arena if is_contest else rng.sample(_LANES, rng.choice((1, 1, 2)))
        mine = rng.sample(models, rng.randint(1, len(models)))
        longest_input, longest_output = rng.choice(((20, 20), (200, 20), (40, 80), (200, 100)))
        patience = rng.random() < 0.2 and not is_contest
        generous = rng.choice((1.0, 1.0, 3.0))
        count = max(1, budget // len(tenants))
        times = [rng.choice((0.0, 0.0, 9_000.0))] * count
        if not is_contest:
            times = _random_times(rng, count, span_ms)
        for at_ms in times:
            output_tokens = rng.randint(1, longest_output)
            asks.append(
                Ask(
                    at_ms,
                    tenant_id,
                    rng.choice(mine).id,
                    rng.choice(lanes),
                    rng.randint(1, longest_input),
                    output_tokens,
                    min(round(output_tokens * generous), 200),
                    deadline_after_ms=rng.uniform(100, 5_000) if rng.random() < 0.05 else None,
                    cancel_after_ms=rng.uniform(0, 3_000) if patience else None,
                    branches=rng.choice((1, 1, 1, 1, 3)),
                    streams=rng.random() < 0.9,
                    keeps_content=rng.random() < 0.9,
                )
            )
    return tuple(sorted(asks, key=lambda ask: ask.at_ms))


def _random_times(rng: random.Random, count: int, span_ms: float) -> list[float]:
    habit = rng.choice(("burst", "steady", "on and off"))
    start_ms = rng.choice((0.0, 0.0, rng.uniform(0, span_ms)))
    if habit == "burst":
        return [start_ms] * count
    if habit == "steady":
        return [rng.uniform(start_ms, span_ms) for _ in range(count)]
    pieces = [rng.uniform(start_ms, span_ms) for _ in range(3)]
    return [rng.choice(pieces) + rng.uniform(0, span_ms / 20) for _ in range(count)]
