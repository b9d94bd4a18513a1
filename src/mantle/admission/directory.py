"""Who is behind an API key? The directory of tenants and their keys, kept as hashes.

Invariant: a key is never stored or logged; what is stored is its SHA-256. Keys carry 192 random
bits, so a fast hash is enough: there is nothing to guess, and a lookup costs microseconds.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from mantle.core.errors import Unauthenticated
from mantle.core.ids import ProjectId, TenantId
from mantle.core.lane import Lane
from mantle.core.tenant import Principal, QueueBound, Tenant

KEY_PREFIX = "mk-"
DEFAULT_PROJECT = ProjectId("default")


def new_api_key() -> str:
    """A fresh API key; show it once, store only `hash_api_key` of it."""
    return KEY_PREFIX + secrets.token_urlsafe(24)


def hash_api_key(api_key: str) -> str:
    """SHA-256 of the key, in hexadecimal."""
    return hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """A tenant and the hashes of its keys."""

    tenant: Tenant
    key_hashes: tuple[str, ...]


class Directory:
    """Tenants by key; immutable, replaced as a whole when it changes."""

    def __init__(self, entries: Iterable[TenantKeys]) -> None:
        self._tenants: dict[TenantId, Tenant] = {}
        self._by_hash: dict[str, Principal] = {}
        for entry in entries:
            self._tenants[entry.tenant.id] = entry.tenant
            principal = Principal(entry.tenant, DEFAULT_PROJECT)
            for key_hash in entry.key_hashes:
                self._by_hash[key_hash] = principal

    def authenticate(self, api_key: str | None) -> Principal:
        """Raises `Unauthenticated` without saying which part was wrong."""
        if not api_key:
            raise Unauthenticated(
                "no API key was given",
                hint="send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
            )
        principal = self._by_hash.get(hash_api_key(api_key))
        if principal is None:
            raise Unauthenticated("the API key is not known", hint="check the key")
        return principal

    def weight(self, tenant_id: TenantId) -> float:
        tenant = self._tenants.get(tenant_id)
        return 1.0 if tenant is None else tenant.weight

    def queue_bound(self, tenant_id: TenantId, lane: Lane) -> QueueBound | None:
        tenant = self._tenants.get(tenant_id)
        return None if tenant is None else tenant.queue_bound(lane)

    def tenants(self) -> list[Tenant]:
        return list(self._tenants.values())
