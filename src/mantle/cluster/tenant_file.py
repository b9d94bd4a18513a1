"""Where do tenants made by `mantle tenants` live? One JSON file in the data folder.

Invariant: the file is replaced as a whole, readable by its owner only, and holds key hashes,
never keys.
"""

import os
from pathlib import Path

import msgspec

from mantle.admission.directory import TenantKeys, hash_api_key, new_api_key
from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import Config, TenantConfig
from mantle.core.ids import ModelId, TenantId
from mantle.core.tenant import Tenant


class TenantFile:
    """`tenants.json` of one data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "tenants.json"

    def read(self) -> list[TenantConfig]:
        """All tenants; empty when there is no file yet. Raises `ConfigError`."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return msgspec.json.decode(raw, type=list[TenantConfig])
        except msgspec.DecodeError as error:
            remedy = "mend it or remove it to start without tenants"
            raise ConfigError(f"{self._path}: {error}; {remedy}") from None

    def write(self, tenants: list[TenantConfig]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(tenants), indent=1))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)

    def add(self, tenant: TenantConfig) -> None:
        """Raises `ConfigError` when the id is taken."""
        tenants = self.read()
        if any(known.id == tenant.id for known in tenants):
            raise ConfigError(f"tenant '{tenant.id}' exists; `mantle tenants list` shows all")
        self.write([*tenants, tenant])

    def add_key(self, tenant_id: str) -> str:
        """Make a key for a tenant and return it: the only time it can be seen."""
        api_key = new_api_key()
        tenants = self.read()
        if all(known.id != tenant_id for known in tenants):
            raise ConfigError(f"no tenant '{tenant_id}'; `mantle tenants add {tenant_id}` makes it")
        self.write([_with_key(t, api_key) if t.id == tenant_id else t for t in tenants])
        return api_key

    def revoke_key(self, tenant_id: str, hash_prefix: str) -> int:
        """Forget the tenant's keys whose hash begins so; returns how many."""
        tenants, revoked = [], 0
        for tenant in self.read():
            keep = tenant.api_key_sha256
            if tenant.id == tenant_id:
                keep = [h for h in keep if not h.startswith(hash_prefix)]
                revoked += len(tenant.api_key_sha256) - len(keep)
            tenants.append(msgspec.structs.replace(tenant, api_key_sha256=keep))
        self.write(tenants)
        return revoked


def tenant_keys(config: Config, from_file: list[TenantConfig]) -> list[TenantKeys]:
    """Tenants of the config and of the data folder. Raises `ConfigError` for one in both."""
    twice = {t.id for t in config.tenants} & {t.id for t in from_file}
    if twice:
        name = sorted(twice)[0]
        raise ConfigError(f"tenant '{name}' is in the config and in the data folder; remove one")
    return [_keys_of(tenant) for tenant in [*config.tenants, *from_file]]


def _with_key(tenant: TenantConfig, api_key: str) -> TenantConfig:
    hashes = [*tenant.api_key_sha256, hash_api_key(api_key)]
    return msgspec.structs.replace(tenant, api_key_sha256=hashes)


def _keys_of(tenant: TenantConfig) -> TenantKeys:
    models = None if tenant.models is None else frozenset(ModelId(m) for m in tenant.models)
    value = Tenant(TenantId(tenant.id), tenant.weight, models, frozenset(tenant.lanes))
    return TenantKeys(value, tuple(tenant.api_key_sha256))
