"""A whole Mantle in one process, on scripted models: what tests and examples talk to.

Invariant: it is the production wiring; only the worker link and the clock are other ones.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mantle.admission.directory import TenantKeys, hash_api_key
from mantle.cluster.config_model import Config
from mantle.cluster.wiring import Platform, build
from mantle.core.clock import SystemClock
from mantle.core.ids import TenantId, WorkerId
from mantle.core.script import Script
from mantle.core.tenant import Tenant
from mantle.engine.port import WorkerLink
from mantle.journal.port import Journal
from mantle.testing.catalogue import ListCatalogue, scripted_entry
from mantle.testing.in_process_link import InProcessLink
from mantle.testing.scripts import write_script
from mantle.testing.sim_clock import SimClock

TEST_KEY = "mk-test"


@dataclass(slots=True)
class ScriptedPlatform:
    """A running platform, and its workers' links (the last one is the live one)."""

    platform: Platform
    links: list[InProcessLink] = field(default_factory=list)

    @property
    def link(self) -> InProcessLink:
        return self.links[-1]


@asynccontextmanager
async def scripted_platform(
    folder: Path,
    scripts: dict[str, Script],
    *,
    config: Config | None = None,
    tenants: Sequence[TenantKeys] | None = None,
    budget_bytes: int = 1 << 30,
    journal: Journal | None = None,
) -> AsyncIterator[ScriptedPlatform]:
    """Start a platform that serves these scripts under their names; `TEST_KEY` opens it."""
    entries = [
        scripted_entry(write_script(folder, script, name=name), name=name)
        for name, script in scripts.items()
    ]
    links: list[InProcessLink] = []

    async def start_worker(_worker_id: WorkerId) -> WorkerLink:
        links.append(InProcessLink.scripted(SimClock()))
        return links[-1]

    platform = build(
        config or Config(),
        catalogue=ListCatalogue(*entries),
        tenants=tenants or [tenant_with_key()],
        start_worker=start_worker,
        budgets={WorkerId("w0"): budget_bytes},
        clock=SystemClock(),
        journal=journal,
    )
    await platform.start()
    try:
        yield ScriptedPlatform(platform, links)
    finally:
        await platform.close()


def tenant_with_key(tenant_id: str = "tester", *, key: str = TEST_KEY) -> TenantKeys:
    """A tenant that may do everything."""
    return TenantKeys(Tenant(TenantId(tenant_id)), (hash_api_key(key),))
