"""Does one seed's world keep every promise? Builds it from the real parts and lets time run."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mantle.core.errors import JournalFault
from mantle.core.ids import ModelId
from mantle.journal.record import Record
from mantle.pool.placement import Placement
from mantle.scheduler.scheduler import Scheduler
from mantle.testing.sim_cluster.cluster import SimCluster
from mantle.testing.sim_cluster.event_log import EventLog
from mantle.testing.sim_cluster.event_queue import EventQueue
from mantle.testing.sim_cluster.invariant import InvariantBroken, broken
from mantle.testing.sim_cluster.mishaps import happen
from mantle.testing.sim_cluster.paper_engine import PaperEngine
from mantle.testing.sim_cluster.paper_journal import PaperDisk, PaperJournal
from mantle.testing.sim_cluster.paper_store import PaperStore
from mantle.testing.sim_cluster.paper_worker import PaperWorker
from mantle.testing.sim_cluster.restarts import MakeJournal, Restarts
from mantle.testing.sim_cluster.scenario import Scenario, random_scenario
from mantle.testing.sim_cluster.server_mishaps import befall
from mantle.testing.sim_cluster.watcher import Watcher
from mantle.testing.sim_cluster.witness import Witness

HORIZON_MS = 3_600_000.0
TICK_MS = 50.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects under test; a test may put a sabotaged one in."""

    scheduler: Callable[[Scenario], Scheduler]
    placement: Callable[[Scenario], Placement]
    store: Callable[[Callable[[Sequence[Record]], None]], PaperStore] = PaperStore
    journal: MakeJournal = PaperJournal


def real_scheduler(scenario: Scenario) -> Scheduler:
    return Scheduler(scenario.rules, weight_of=scenario.weights.__getitem__)


def real_placement(scenario: Scenario) -> Placement:
    return Placement(scenario.placement, lambda model_id: scenario.models[model_id].size_bytes)


REAL_PARTS = Parts(real_scheduler, real_placement)


def replay_command(seed: int) -> str:
    """What a person types to see this seed again."""
    return f"python -m mantle.testing.sim_cluster --seed {seed}"


def run_seed(seed: int, *, parts: Parts = REAL_PARTS, log: EventLog | None = None) -> Watcher:
    """Run the seed's world to its end. Raises `InvariantBroken` that says how to see it again."""
    world = build(random_scenario(seed), parts=parts, log=log)
    cluster = world.cluster
    try:
        run(world)
    except (AssertionError, JournalFault) as error:  # also of the objects under test
        at_ms = cluster.events.at_ms
        again = f"seed {seed}, at {at_ms:.1f} ms: {error}\nreplay: {replay_command(seed)}"
        raise InvariantBroken(again) from error
    return cluster.watcher


def build(
    scenario: Scenario, *, parts: Parts = REAL_PARTS, log: EventLog | None = None
) -> Restarts:
    """The pool and its journal, with all that will happen already planned."""
    events, witness = EventQueue(), Witness()
    scheduler = parts.scheduler(scenario)
    bounds = scenario.rules.bounds
    watcher = Watcher(
        events,
        scheduler,
        scenario.weights.__getitem__,
        {lane: bound.wait_s_max * 1e3 for lane, bound in bounds.items()},
        TICK_MS,
        log=log,
        may_fail=scenario.may_fail,
        witness=witness,
    )
    cluster = SimCluster(
        events, scheduler, scenario.models, scenario.cost, watcher, placement=None, tick_ms=TICK_MS
    )
    for worker_id, budget_bytes in scenario.budgets.items():
        worker = PaperWorker(
            worker_id,
            cluster,
            events,
            random.Random(f"{scenario.seed} {worker_id}"),
            lambda model_id: _engine(scenario, model_id),
            lambda model_id: scenario.cost.load_ms(scenario.models[model_id].size_bytes),
            scenario.delays,
        )
        cluster.add_worker(worker, budget_bytes)
    world = Restarts(
        cluster,
        witness,
        parts.store(witness.committed),
        PaperDisk(random.Random(f"{scenario.seed} disk"), scenario.commit_ms),
        random.Random(f"{scenario.seed} restarts"),
        lambda: parts.scheduler(scenario),
        lambda: parts.placement(scenario),
        parts.journal,
    )
    world.start()
    for ask in scenario.asks:
        events.at(ask.at_ms, partial(cluster.arrive, ask))
    for mishap in scenario.mishaps:
        events.at(mishap.at_ms, partial(happen, cluster, mishap))
    for server_mishap in scenario.server_mishaps:
        events.at(server_mishap.at_ms, partial(befall, world, server_mishap))
    return world


def run(world: Restarts) -> None:
    """Until nothing happens any more."""
    cluster = world.cluster
    while cluster.events.run_next():
        if cluster.events.at_ms > HORIZON_MS:
            broken(f"{cluster.watcher.open_count} requests never end")
    cluster.watcher.check_end()
    world.witness.check_end(world.store)


def _engine(scenario: Scenario, model_id: ModelId) -> PaperEngine:
    model = scenario.models[model_id]
    return PaperEngine(scenario.cost, model.slots, model.kv_tokens, scenario.report_tokens)
