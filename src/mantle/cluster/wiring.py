"""How do all parts meet? The only place that knows every stage; it decides nothing.

Invariant: a `Platform` is built without I/O, started once and closed once; closing ends live
requests with an error their clients can see, then stops the workers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.types import ASGIApp

from mantle.admission.admit import Admission
from mantle.admission.directory import Directory, TenantKeys
from mantle.admission.port import TenantAdmin
from mantle.cluster.capacity import SpeedMeter
from mantle.cluster.config_model import Config
from mantle.cluster.fail_stop import FailStop
from mantle.cluster.health import PlatformHealth
from mantle.cluster.model_needs import ModelNeeds
from mantle.cluster.texts import Texts
from mantle.core.clock import Clock, SystemClock
from mantle.core.ids import ModelId, WorkerId
from mantle.engine.port import WorkerLink
from mantle.gateway.adopt import adopt
from mantle.gateway.fair_executor import FairExecutor
from mantle.gateway.held import HeldAsks
from mantle.gateway.parts import GatewayParts
from mantle.gateway.serve import pins_of
from mantle.gateway.server import build_app
from mantle.journal.port import Journal, Pins, Recovered
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.observe.metrics import Metrics
from mantle.pool.placement import Placement
from mantle.pool.port import CataloguePort
from mantle.pool.supervisor import Supervisor
from mantle.scheduler.cost import CostWeights
from mantle.scheduler.dispatcher import Dispatcher
from mantle.scheduler.overview import Overview
from mantle.scheduler.restoring import restore
from mantle.scheduler.rules import SchedulerRules
from mantle.scheduler.scheduler import Scheduler

TEXT_THREADS = 4
"""Threads that tokenise; the work is CPU-bound and mostly outside the interpreter lock."""

StartWorker = Callable[[WorkerId], Awaitable[WorkerLink]]


@dataclass(slots=True)
class Platform:
    """A whole Mantle, ready to start."""

    app: ASGIApp
    admission: Admission
    dispatcher: Dispatcher
    supervisor: Supervisor
    health: PlatformHealth
    metrics: Metrics
    journal: Journal
    executor: ThreadPoolExecutor
    preload: Sequence[ModelId]
    speeds: SpeedMeter
    parts: GatewayParts
    fail_stop: FailStop

    async def start(self) -> None:
        """Start the workers and the loops, and go on with what the last server left; returns
        before models are loaded. Raises `JournalFault` when the journal cannot be read.
        """
        recovered = await self.journal.recover()
        self.supervisor.start()
        self.dispatcher.start()
        await self._go_on(recovered)
        self.supervisor.keep_warm(self.preload)

    async def _go_on(self, recovered: Recovered) -> None:
        parts = self.parts

        def pins(model_id: ModelId) -> Pins | None:
            entry = parts.catalogue.find(model_id)
            return None if entry is None else pins_of(entry)

        live = restore(self.dispatcher, recovered, pins_of=pins, clock=parts.clock)
        await adopt(parts, recovered.asks, live)

    async def close(self, *, drain_s_max: float = 0.0) -> None:
        """Let live requests finish for a while, end the rest, stop the workers."""
        self.health.stopping = True
        if drain_s_max:
            await self.dispatcher.drain(seconds_max=drain_s_max)
        await self.dispatcher.close()
        await self.parts.asks.close()
        await self.supervisor.close()
        await self.journal.close()
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def until_ready(self) -> None:
        """Return when `/ready` would say yes; the caller bounds the time."""
        while not self.health.is_ready():
            self.supervisor.changed.clear()
            await self.supervisor.changed.wait()


def build(
    config: Config,
    *,
    catalogue: CataloguePort,
    tenants: Sequence[TenantKeys],
    start_worker: StartWorker,
    budgets: Mapping[WorkerId, int],
    clock: Clock | None = None,
    journal: Journal | None = None,
    fail_stop: FailStop | None = None,
    admin: TenantAdmin | None = None,
) -> Platform:
    """Put a platform together from its config and what differs between machines and tests."""
    clock = clock or SystemClock()
    fail_stop = fail_stop or FailStop()
    journal = journal or EphemeralJournal()
    executor = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
    metrics = Metrics(tenant_label=config.observe.tenant_label)
    supervisor = _supervisor(config, catalogue, start_worker, budgets, clock)
    admission_of: list[Admission] = []
    scheduler = _scheduler(config, lambda: admission_of[0].directory, metrics)
    speeds = SpeedMeter()
    dispatcher = Dispatcher(
        scheduler=scheduler, pool=supervisor, journal=journal, clock=clock,
        observer=metrics, on_step=speeds.engine_step,
    )  # fmt: skip
    admission = Admission(
        directory=Directory(tenants),
        catalogue=catalogue,
        pool=supervisor,
        scheduler=dispatcher,
        clock=clock,
        keeps_content=config.journal.retention == "default",
    )
    admission_of.append(admission)
    preload = preload_models(config, catalogue)
    health = _health(supervisor, preload, journal)
    overview = Overview(scheduler, clock)
    _watch(metrics, dispatcher, supervisor, overview)
    parts = GatewayParts(
        admission=admission,
        catalogue=catalogue,
        pool=supervisor,
        texts=Texts(executor),
        executor=FairExecutor(executor, TEXT_THREADS),
        clock=clock,
        health=health,
        metrics=metrics,
        journal=journal,
        asks=HeldAsks(clock, grace_s=config.gateway.reattach_grace_s),
        overview=overview,
        settings=config.gateway,
        admin=admin,
    )
    return Platform(
        app=build_app(parts),
        admission=admission,
        dispatcher=dispatcher,
        supervisor=supervisor,
        health=health,
        metrics=metrics,
        journal=journal,
        executor=executor,
        preload=preload,
        speeds=speeds,
        parts=parts,
        fail_stop=fail_stop,
    )


def _health(supervisor: Supervisor, preload: Sequence[ModelId], journal: Journal) -> PlatformHealth:
    return PlatformHealth(
        workers_alive=supervisor.workers_alive,
        pool=supervisor,
        preload=preload,
        trouble=lambda: journal.trouble,
    )


def _supervisor(
    config: Config,
    catalogue: CataloguePort,
    start_worker: StartWorker,
    budgets: Mapping[WorkerId, int],
    clock: Clock,
) -> Supervisor:
    needs = ModelNeeds(config, catalogue, max(budgets.values(), default=0))
    return Supervisor(
        placement=Placement(config.pool.placement, needs.need_bytes),
        start_worker=start_worker,
        budgets=budgets,
        spec_of=needs.load_spec,
        window_of=needs.window_tokens,
        clock=clock,
    )


def _scheduler(config: Config, directory: Callable[[], Directory], metrics: Metrics) -> Scheduler:
    """Weights and queue bounds are read from the directory in force."""
    return Scheduler(
        _rules(config),
        weight_of=lambda tenant_id: directory().weight(tenant_id),
        bound_of=lambda tenant_id, lane: directory().queue_bound(tenant_id, lane),
        on_wait_over=metrics.wait_over,
    )


def _watch(
    metrics: Metrics, dispatcher: Dispatcher, supervisor: Supervisor, overview: Overview
) -> None:
    """What the metrics ask for when they are read."""
    metrics.watch(
        queued=dispatcher.waiting_counts,
        running=dispatcher.running_counts,
        certificate=overview.certificates,
        certificate_highest=overview.certificates_highest,
        restarts=lambda: supervisor.restarts,
    )


def preload_models(config: Config, catalogue: CataloguePort) -> list[ModelId]:
    """Models to load at start: those the config names, else the only one there is."""
    if config.pool.preload is None:
        entries = catalogue.entries()
        return [entries[0].id] if len(entries) == 1 else []
    found = [catalogue.find(name) for name in config.pool.preload]
    return [entry.id for entry in found if entry is not None]


def _rules(config: Config) -> SchedulerRules:
    cost = CostWeights(config.scheduler.cost.input_token, config.scheduler.cost.output_token)
    return SchedulerRules(config.scheduler.bounds(), config.scheduler.floors(), cost)
