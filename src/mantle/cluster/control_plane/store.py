"""Who are the tenants, and what did each one buy? Reads and changes of the control plane's tables.

Invariant: each change is one transaction that also moves `change_count`; API keys are stored as
hashes and returned once, when they are made. Values are checked before they come here, but that
no more is reserved than was measured is checked here, where no other change comes between.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from mantle.admission.directory import hash_api_key, new_api_key
from mantle.cluster.capacity import Speed, refuse_oversold
from mantle.cluster.control_plane.database import writing
from mantle.cluster.control_plane.rows import (
    LIMIT_TABLES,
    StoredTenant,
    columns_of,
    read_tenant,
    read_tenants,
    write_limits,
)
from mantle.cluster.control_plane.speeds import read_speeds
from mantle.cluster.control_plane.tables import (
    ADMIN_KEYS,
    API_KEYS,
    CHANGE_COUNT,
    TENANTS,
)
from mantle.core.clock import Clock, SystemClock
from mantle.core.errors import Conflict
from mantle.core.ids import ModelId
from mantle.core.tenant import Tenant

PREFIX_CHARS = 8
"""Characters of a key that are kept to recognise it: 5 of its 32 random ones."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    change_count: int
    tenants: tuple[StoredTenant, ...]
    admin_key_hashes: frozenset[str]


class ControlStore:
    """The control plane of one database. Thread-safe; every call is one transaction.

    `beside`: tenants of the config file, whose reservations count too.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self.beside: Sequence[Tenant] = ()
        self._engine = engine
        self._clock = clock or SystemClock()

    @property
    def engine(self) -> sa.Engine:
        """The database, for what is kept beside the tenants."""
        return self._engine

    def close(self) -> None:
        self._engine.dispose()

    # --- reading ----------------------------------------------------------------------------
    def change_count(self) -> int:
        """Moves with every change; cheap."""
        with self._engine.connect() as connection:
            return _change_count(connection)

    def snapshot(self) -> Snapshot:
        with self._engine.connect() as connection:
            change_count = _change_count(connection)  # first: a later change is read again
            hashes = connection.scalars(
                sa.select(ADMIN_KEYS.c.hash).where(ADMIN_KEYS.c.revoked_s.is_(None))
            )
            return Snapshot(change_count, read_tenants(connection), frozenset(hashes))

    def find(self, tenant_id: str) -> StoredTenant:
        """Raises `NotFound`."""
        with self._engine.connect() as connection:
            return read_tenant(connection, tenant_id)

    # --- tenants ----------------------------------------------------------------------------
    def add(self, tenant: Tenant, *, key_hashes: Iterable[str] = ()) -> None:
        """Raises `Conflict` when the id is taken, `InvalidRequest` when it reserves too much."""
        with self._change() as connection:
            if _exists(connection, tenant.id):
                raise Conflict(f"tenant '{tenant.id}' exists", hint="choose another id")
            self._check_reserved(connection, None, tenant)
            row = {"id": tenant.id, "created_s": self._now_s(), **columns_of(tenant)}
            connection.execute(sa.insert(TENANTS).values(row))
            write_limits(connection, tenant)
            for key_hash in key_hashes:
                self._insert_key(connection, tenant.id, key_hash, prefix="")

    def change(self, tenant_id: str, edit: Callable[[Tenant], Tenant]) -> StoredTenant:
        """Replace a tenant by `edit` of it; what `edit` raises undoes it.

        Raises `NotFound`, or `InvalidRequest` when it reserves too much.
        """
        with self._change() as connection:
            before = read_tenant(connection, tenant_id).tenant
            changed = edit(before)
            assert changed.id == tenant_id, "an id does not change"
            self._check_reserved(connection, before, changed)
            where = TENANTS.c.id == tenant_id
            connection.execute(sa.update(TENANTS).where(where).values(columns_of(changed)))
            write_limits(connection, changed)
            return read_tenant(connection, tenant_id)

    def remove(self, tenant_id: str) -> None:
        """The tenant and its keys are gone; what runs for it ends by itself. Raises `NotFound`."""
        with self._change() as connection:
            read_tenant(connection, tenant_id)
            for table in (*LIMIT_TABLES, API_KEYS):
                connection.execute(sa.delete(table).where(table.c.tenant_id == tenant_id))
            connection.execute(sa.delete(TENANTS).where(TENANTS.c.id == tenant_id))

    # --- keys -------------------------------------------------------------------------------
    def add_key(self, tenant_id: str) -> str:
        """Make a key and return it: the only time it can be seen. Raises `NotFound`."""
        api_key = new_api_key()
        with self._change() as connection:
            read_tenant(connection, tenant_id)
            prefix = api_key[:PREFIX_CHARS]
            self._insert_key(connection, tenant_id, hash_api_key(api_key), prefix=prefix)
        return api_key

    def revoke_keys(self, tenant_id: str, hash_prefix: str) -> int:
        """Revoke the tenant's keys whose hash begins so; returns how many. Raises `NotFound`."""
        with self._change() as connection:
            keys = read_tenant(connection, tenant_id).keys
            hashes = [
                k.hash for k in keys if k.revoked_s is None and k.hash.startswith(hash_prefix)
            ]
            where = API_KEYS.c.hash.in_(hashes)
            connection.execute(sa.update(API_KEYS).where(where).values(revoked_s=self._now_s()))
            return len(hashes)

    def replace_admin_key(self) -> str:
        """Make the admin key and revoke the one before; returns it, the only time it is seen."""
        api_key = new_api_key()
        with self._change() as connection:
            connection.execute(
                sa.update(ADMIN_KEYS)
                .where(ADMIN_KEYS.c.revoked_s.is_(None))
                .values(revoked_s=self._now_s())
            )
            row = {"hash": hash_api_key(api_key), "prefix": api_key[:PREFIX_CHARS]}
            connection.execute(sa.insert(ADMIN_KEYS).values(**row, created_s=self._now_s()))
        return api_key

    # --- speeds -----------------------------------------------------------------------------
    def speeds(self) -> dict[ModelId, Speed]:
        """What each model was measured to give."""
        with self._engine.connect() as connection:
            return read_speeds(connection)

    # --- within -----------------------------------------------------------------------------
    @contextmanager
    def _change(self) -> Iterator[sa.Connection]:
        """A transaction that moves `change_count` when it commits."""
        with writing(self._engine).begin() as connection:
            yield connection
            value = CHANGE_COUNT.c.value + 1
            connection.execute(sa.update(CHANGE_COUNT).values(value=value))

    def _check_reserved(
        self, connection: sa.Connection, before: Tenant | None, after: Tenant
    ) -> None:
        if not after.reservations:
            return
        fixed = {tenant.id for tenant in self.beside}
        stored = [s.tenant for s in read_tenants(connection)]
        others = [t for t in stored if t.id not in fixed and t.id != after.id]
        refuse_oversold(before, after, [*self.beside, *others], read_speeds(connection))

    def _now_s(self) -> int:
        return int(self._clock.wall_s())

    def _insert_key(
        self, connection: sa.Connection, tenant_id: str, key_hash: str, *, prefix: str
    ) -> None:
        connection.execute(
            sa.insert(API_KEYS).values(
                hash=key_hash, tenant_id=tenant_id, prefix=prefix, created_s=self._now_s()
            )
        )


def _change_count(connection: sa.Connection) -> int:
    return int(connection.scalar(sa.select(CHANGE_COUNT.c.value)) or 0)


def _exists(connection: sa.Connection, tenant_id: str) -> bool:
    found = sa.select(TENANTS.c.id).where(TENANTS.c.id == tenant_id)
    return connection.scalar(found) is not None
