"""Who is a tenant right now? Those of the config file and of the tables, followed while running.

Invariant: what is in force is at most `CHECK_EVERY_S` behind the tables, and never behind a
change that was made through this object. A database that can not be read leaves what is in force
as it was, and says so in the log. Tenants of the config file are read-only and win.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa

from mantle.admission.directory import Directory, TenantKeys
from mantle.cluster.capacity import oversold, reserved_models
from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import TenantConfig
from mantle.cluster.control_plane.rows import StoredTenant
from mantle.cluster.control_plane.store import ControlStore, Snapshot

log = logging.getLogger("mantle.cluster")

CHECK_EVERY_S: Final = 0.5


class LiveTenants:
    """The tenants in force. `apply` is called with a new directory whenever they change."""

    def __init__(self, store: ControlStore, from_config: Sequence[TenantConfig] = ()) -> None:
        self.store = store
        self.from_config = tuple(from_config)
        store.beside = [tenant.as_tenant() for tenant in self.from_config]
        self.apply: Callable[[Directory], None] = _ignore
        self.snapshot: Snapshot = store.snapshot()

    def entries(self) -> list[TenantKeys]:
        """All tenants with their keys' hashes."""
        fixed = {tenant.id for tenant in self.from_config}
        return [
            *(TenantKeys(t.as_tenant(), tuple(t.api_key_sha256)) for t in self.from_config),
            *(_keys_of(t) for t in self.snapshot.tenants if t.tenant.id not in fixed),
        ]

    def twice(self) -> list[str]:
        """Ids that are in the config and in the tables."""
        fixed = {tenant.id for tenant in self.from_config}
        return [t.tenant.id for t in self.snapshot.tenants if t.tenant.id in fixed]

    def check_start(self) -> None:
        """Raises `ConfigError` when the server would be of no use to anybody, or is oversold."""
        for name in self.twice():
            raise ConfigError(
                f"tenant '{name}' is in the config and in the data folder; remove one"
            )
        self._check_reserved()
        if self.snapshot.admin_key_hashes:
            return  # tenants can be made at run time
        entries = self.entries()
        if not entries:
            raise ConfigError("there is no tenant; `mantle tenants add ID` makes one with a key")
        if not any(entry.key_hashes for entry in entries):
            raise ConfigError(
                "no tenant has an API key, so nobody could be told apart; "
                "`mantle tenants key ID` makes one"
            )

    def _check_reserved(self) -> None:
        """What the config reserves must fit beside the tables; those alone were checked before."""
        tenants = [entry.tenant for entry in self.entries()]
        speeds = self.store.speeds()
        for model_id in reserved_models(self.store.beside):
            problem = oversold(tenants, speeds, model_id)
            if problem is not None:
                raise ConfigError(f"tenants[].reservations: {problem}; reserve less")

    async def refresh(self) -> None:
        """Read again if anything has changed."""
        count = await asyncio.to_thread(self.store.change_count)
        if count == self.snapshot.change_count:
            return
        snapshot = await asyncio.to_thread(self.store.snapshot)
        if snapshot.change_count <= self.snapshot.change_count:
            return  # somebody else was faster
        self.snapshot = snapshot
        self.apply(Directory(self.entries()))
        for name in self.twice():
            log.error("tenant '%s' is in the config too, which wins; remove one", name)
        log.info("tenants were read again: %d in the tables", len(snapshot.tenants))

    async def watch(self) -> None:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self.refresh()
            except (sa.exc.SQLAlchemyError, ValueError) as error:  # ValueError: an unknown lane
                log.error("tenants were not read again: %s", type(error).__name__)


def _keys_of(stored: StoredTenant) -> TenantKeys:
    return TenantKeys(stored.tenant, stored.key_hashes)


def _ignore(_directory: Directory) -> None:
    return None
