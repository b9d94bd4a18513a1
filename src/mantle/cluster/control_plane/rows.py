"""How does a tenant lie in the tables? Rows to frozen values and back.

Invariant: what `write_limits` and `columns_of` store, `read_tenants` gives back equal.
"""

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from mantle.cluster.control_plane.tables import (
    API_KEYS,
    QUEUE_BOUNDS,
    QUOTAS,
    RESERVATIONS,
    TENANTS,
)
from mantle.core.errors import NotFound
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import QueueBound, Quota, Reservation, Tenant

LIMIT_TABLES: Final = (QUOTAS, RESERVATIONS, QUEUE_BOUNDS)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as it is kept. `prefix` is empty when only its hash was ever known."""

    hash: str
    prefix: str
    created_s: int
    revoked_s: int | None


@dataclass(frozen=True, slots=True)
class StoredTenant:
    """A tenant and all keys it ever had, oldest first."""

    tenant: Tenant
    keys: tuple[StoredKey, ...]
    created_s: int

    @property
    def key_hashes(self) -> tuple[str, ...]:
        """Hashes of the keys that are not revoked."""
        return tuple(key.hash for key in self.keys if key.revoked_s is None)


def read_tenant(connection: sa.Connection, tenant_id: str) -> StoredTenant:
    found = read_tenants(connection, tenant_id)
    if not found:
        raise NotFound(f"no tenant '{tenant_id}'", hint="`mantle tenants list` shows all")
    return found[0]


def read_tenants(
    connection: sa.Connection, tenant_id: str | None = None
) -> tuple[StoredTenant, ...]:
    """All tenants in order of their ids, or the one."""

    def rows(table: sa.Table, column: str, *order: str) -> list[Any]:
        query = sa.select(table).order_by(*(table.c[name] for name in order))
        if tenant_id is not None:
            query = query.where(table.c[column] == tenant_id)
        return list(connection.execute(query))

    keys: dict[str, list[StoredKey]] = {}
    for row in rows(API_KEYS, "tenant_id", "created_s", "hash"):
        key = StoredKey(row.hash, row.prefix, row.created_s, row.revoked_s)
        keys.setdefault(row.tenant_id, []).append(key)
    quotas: dict[str, list[Quota]] = {}
    for row in rows(QUOTAS, "tenant_id", "model"):
        quotas.setdefault(row.tenant_id, []).append(_quota(row))
    reservations: dict[str, list[Reservation]] = {}
    for row in rows(RESERVATIONS, "tenant_id", "model"):
        reservations.setdefault(row.tenant_id, []).append(_reservation(row))
    queues: dict[str, list[QueueBound]] = {}
    for row in rows(QUEUE_BOUNDS, "tenant_id", "lane"):
        bound = QueueBound(Lane(row.lane), row.requests_max, row.tokens_max)
        queues.setdefault(row.tenant_id, []).append(bound)
    return tuple(
        StoredTenant(
            Tenant(
                TenantId(row.id),
                row.weight,
                None if row.models is None else frozenset(map(ModelId, row.models)),
                frozenset(map(Lane, row.lanes)),
                tuple(quotas.get(row.id, ())),
                tuple(reservations.get(row.id, ())),
                tuple(queues.get(row.id, ())),
            ),
            tuple(keys.get(row.id, ())),
            row.created_s,
        )
        for row in rows(TENANTS, "id", "id")
    )


def _quota(row: Any) -> Quota:
    model_id = ModelId(row.model)
    return Quota(model_id, row.input_tokens_per_min, row.output_tokens_per_min, row.concurrent_max)


def _reservation(row: Any) -> Reservation:
    return Reservation(ModelId(row.model), row.input_tokens_per_min, row.output_tokens_per_min)


def columns_of(tenant: Tenant) -> dict[str, Any]:
    return {
        "weight": tenant.weight,
        "lanes": sorted(tenant.lanes, key=lambda lane: lane.rank),
        "models": None if tenant.models is None else sorted(tenant.models),
    }


def write_limits(connection: sa.Connection, tenant: Tenant) -> None:
    """Quotas, reservations and queue bounds as the tenant has them now."""
    for table in LIMIT_TABLES:
        connection.execute(sa.delete(table).where(table.c.tenant_id == tenant.id))
    quotas = [
        {
            "tenant_id": tenant.id,
            "model": quota.model_id,
            "input_tokens_per_min": quota.input_tokens_per_min,
            "output_tokens_per_min": quota.output_tokens_per_min,
            "concurrent_max": quota.concurrent_max,
        }
        for quota in tenant.quotas
    ]
    reservations = [
        {
            "tenant_id": tenant.id,
            "model": bought.model_id,
            "input_tokens_per_min": bought.input_tokens_per_min,
            "output_tokens_per_min": bought.output_tokens_per_min,
        }
        for bought in tenant.reservations
    ]
    if quotas:
        connection.execute(sa.insert(QUOTAS), quotas)
    if reservations:
        connection.execute(sa.insert(RESERVATIONS), reservations)
    queues = [
        {
            "tenant_id": tenant.id,
            "lane": bound.lane.value,
            "requests_max": bound.requests_max,
            "tokens_max": bound.tokens_max,
        }
        for bound in tenant.queues
    ]
    if queues:
        connection.execute(sa.insert(QUEUE_BOUNDS), queues)
