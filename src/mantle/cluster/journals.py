"""Where does this server's journal lie, and what does it promise? From the config.

Invariant: opening it makes this server its owner: an older one's next commit fails.
"""

import os
import time
from pathlib import Path
from typing import Final

from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import JournalConfig
from mantle.cluster.fail_stop import FailStop
from mantle.core.errors import JournalFault
from mantle.journal.port import Journal
from mantle.journal.store_port import JournalStore, Opening
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.journal.stores.sqlite import FILE_NAME, SqliteStore
from mantle.journal.writer import DurableJournal, Policy

URL_VARIABLE: Final = "MANTLE_JOURNAL_URL"


def open_journal(config: JournalConfig, data_dir: Path, fail_stop: FailStop) -> Journal:
    """Raises `ConfigError` when it cannot be opened."""
    if config.store == "none":
        return EphemeralJournal()
    return DurableJournal(
        open_store(config, data_dir, Opening.OWNING),
        on_failed=fail_stop.fail,
        wall_s=time.time,
        policy=Policy(config.policy),
        keep_s=config.keep_s,
    )


def open_store(config: JournalConfig, data_dir: Path, opening: Opening) -> JournalStore:
    """The store of a config that has one. Raises `ConfigError`."""
    if config.store == "sqlite":
        try:
            return SqliteStore(data_dir, opening=opening)
        except JournalFault as fault:
            raise ConfigError(f"{fault.message}. {remedy(config, data_dir)}") from None
    url = config.url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise ConfigError(
            f"journal.url: `store: postgres` needs one (or {URL_VARIABLE} in the environment), "
            "such as postgresql://mantle@db.example/mantle"
        )
    try:
        return _open_postgres(url, config.schema, opening)
    except JournalFault as fault:
        raise ConfigError(f"journal.url: {fault.message}") from None


def remedy(config: JournalConfig, data_dir: Path) -> str:
    """What helps when the journal cannot be trusted; for the operator's terminal, not clients."""
    if config.store != "sqlite":
        return "Mend the database, then start the server again: it goes on with what was running"
    path = data_dir / FILE_NAME
    return (
        "Mend the disk, then start the server again: it goes on with what was running. If "
        f"`mantle journal verify` calls {path} damaged, move it and {FILE_NAME}-wal away: the "
        "server starts without them, and what was running is lost"
    )


def _open_postgres(url: str, schema: str, opening: Opening) -> JournalStore:
    try:
        from mantle.journal.stores.postgres import PostgresStore  # an extra: few need it
    except ImportError:
        raise ConfigError(
            "the journal in PostgreSQL needs psycopg: pip install 'mantle[postgres]'"
        ) from None
    return PostgresStore(url, schema=schema, opening=opening)
