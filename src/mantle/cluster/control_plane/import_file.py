"""Does the data folder still hold the tenants file of an earlier Mantle? It is taken over once.

Invariant: importing twice changes nothing: the file is set aside afterwards, and an id that the
tables have is never overwritten.
"""

import logging
from pathlib import Path

import msgspec

from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import TenantConfig
from mantle.cluster.control_plane.database import open_database
from mantle.cluster.control_plane.store import ControlStore
from mantle.core.errors import Conflict

log = logging.getLogger("mantle.cluster")


def open_store(data_dir: Path) -> ControlStore:
    """The control plane of a data folder, made, migrated and filled as needed.

    Raises `ConfigError`.
    """
    store = ControlStore(open_database(data_dir))
    import_tenant_file(data_dir, store)
    return store


def import_tenant_file(data_dir: Path, store: ControlStore) -> None:
    """Move what `tenants.json` holds into the tables. Raises `ConfigError` if it is broken."""
    path = data_dir / "tenants.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        tenants = msgspec.json.decode(raw, type=list[TenantConfig])
    except msgspec.DecodeError as error:
        remedy = "mend it or remove it to start without its tenants"
        raise ConfigError(f"{path}: {error}; {remedy}") from None
    for tenant in tenants:
        try:
            store.add(tenant.as_tenant(), key_hashes=tenant.api_key_sha256)
        except Conflict:
            log.warning("tenant '%s' of %s is there already: skipped", tenant.id, path.name)
    path.replace(path.with_suffix(".json.imported"))
    log.info("%s was taken into the control plane: %d tenants", path.name, len(tenants))
