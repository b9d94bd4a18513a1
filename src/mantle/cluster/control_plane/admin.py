"""What may an operator change while the server runs? Tenants, their limits and their keys.

Invariant: a change is checked as the config is, is durable, and is in force when the call returns;
tenants of the config file can be seen and not changed.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from mantle.admission.directory import hash_api_key
from mantle.admission.port import ApiKey, TenantRecord
from mantle.cluster.capacity import unmeasured
from mantle.cluster.config_checks import problems_of_tenant
from mantle.cluster.config_model import TenantConfig
from mantle.cluster.control_plane.live import LiveTenants
from mantle.cluster.control_plane.rows import StoredKey, StoredTenant
from mantle.core.errors import Conflict, InvalidRequest, NotFound, Unauthenticated, Unavailable
from mantle.core.tenant import Tenant

KEY_ID_CHARS = 16
"""Digits of a key's hash that name it: 64 bits."""

T = TypeVar("T")


class ControlPlaneAdmin:
    """Implements `TenantAdmin`."""

    def __init__(self, live: LiveTenants) -> None:
        self._live = live
        self._store = live.store

    def authenticate(self, api_key: str | None) -> None:
        """See `TenantAdmin`."""
        hashes = self._live.snapshot.admin_key_hashes
        if not hashes:
            raise NotFound("there is no admin API yet", hint="`mantle admin key` opens it")
        if not api_key or hash_api_key(api_key) not in hashes:
            raise Unauthenticated("this is not the admin key", hint="`mantle admin key` makes one")

    async def tenants(self) -> list[TenantRecord]:
        snapshot = await self._run(self._store.snapshot)
        fixed = [fixed_record(tenant) for tenant in self._live.from_config]
        names = {record.tenant.id for record in fixed}
        stored = [record_of(t) for t in snapshot.tenants if t.tenant.id not in names]
        return sorted([*fixed, *stored], key=lambda record: record.tenant.id)

    async def find(self, tenant_id: str) -> TenantRecord:
        """See `TenantAdmin`."""
        for tenant in self._live.from_config:
            if tenant.id == tenant_id:
                return fixed_record(tenant)
        return record_of(await self._run(lambda: self._store.find(tenant_id)))

    async def add(self, tenant: Tenant) -> TenantRecord:
        """See `TenantAdmin`."""
        _check(tenant)
        if tenant.id in {fixed.id for fixed in self._live.from_config}:
            raise Conflict(f"tenant '{tenant.id}' is in the config file", hint="choose another id")
        await self._write(lambda: self._store.add(tenant))
        return await self._with_warnings(await self.find(tenant.id))

    async def change(self, tenant_id: str, edit: Callable[[Tenant], Tenant]) -> TenantRecord:
        """See `TenantAdmin`."""
        self._check_writable(tenant_id)

        def checked(tenant: Tenant) -> Tenant:
            changed = edit(tenant)
            _check(changed)
            return changed

        stored = await self._write(lambda: self._store.change(tenant_id, checked))
        return await self._with_warnings(record_of(stored))

    async def remove(self, tenant_id: str) -> None:
        """See `TenantAdmin`."""
        self._check_writable(tenant_id)
        await self._write(lambda: self._store.remove(tenant_id))

    async def add_key(self, tenant_id: str) -> tuple[ApiKey, str]:
        """See `TenantAdmin`."""
        self._check_writable(tenant_id)
        api_key = await self._write(lambda: self._store.add_key(tenant_id))
        key_id = hash_api_key(api_key)[:KEY_ID_CHARS]
        record = await self.find(tenant_id)
        return next(key for key in record.keys if key.id == key_id), api_key

    async def revoke_key(self, tenant_id: str, key_id: str) -> None:
        """See `TenantAdmin`."""
        self._check_writable(tenant_id)
        count = 0
        if len(key_id) == KEY_ID_CHARS:  # never a shorter beginning, which could mean several
            count = await self._write(lambda: self._store.revoke_keys(tenant_id, key_id))
        if count == 0:
            raise NotFound(f"tenant '{tenant_id}' has no key in force with this id")

    async def _with_warnings(self, record: TenantRecord) -> TenantRecord:
        if not record.tenant.reservations:
            return record
        speeds = await self._run(self._store.speeds)
        return dataclasses.replace(record, warnings=tuple(unmeasured(record.tenant, speeds)))

    def _check_writable(self, tenant_id: str) -> None:
        if tenant_id in {fixed.id for fixed in self._live.from_config}:
            raise Conflict(
                f"tenant '{tenant_id}' is in the config file and read-only here",
                hint="change the config and restart",
            )

    async def _write(self, write: Callable[[], T]) -> T:
        result = await self._run(write)
        await self._run_refresh()
        return result

    async def _run_refresh(self) -> None:
        try:
            await self._live.refresh()
        except sa.exc.OperationalError:
            raise _silent() from None

    async def _run(self, call: Callable[[], T]) -> T:
        """Off the event loop."""
        try:
            return await asyncio.to_thread(call)
        except sa.exc.OperationalError:
            raise _silent() from None


def record_of(stored: StoredTenant) -> TenantRecord:
    """A tenant of the tables, as an operator sees it."""
    return TenantRecord(
        stored.tenant, tuple(map(_api_key, stored.keys)), stored.created_s, is_read_only=False
    )


def fixed_record(tenant: TenantConfig) -> TenantRecord:
    """A tenant of the config file, as an operator sees it."""
    keys = tuple(ApiKey(h[:KEY_ID_CHARS], "", 0, None) for h in tenant.api_key_sha256)
    return TenantRecord(tenant.as_tenant(), keys, 0, is_read_only=True)


def _api_key(key: StoredKey) -> ApiKey:
    return ApiKey(key.hash[:KEY_ID_CHARS], key.prefix, key.created_s, key.revoked_s)


def _check(tenant: Tenant) -> None:
    """Raises `InvalidRequest` for the first thing wrong with it."""
    for problem in problems_of_tenant(tenant):
        param = problem.split(":", 1)[0]
        raise InvalidRequest(problem, param=param, code="invalid_value")


def _silent() -> Unavailable:
    return Unavailable("the control plane's database does not answer", retry_after_ms=5_000.0)
