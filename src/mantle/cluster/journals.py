"""Where does this server's journal lie, and what does it promise? From the config.

Invariant: opening it makes this server its owner: an older one's next commit fails.
"""

import time
from pathlib import Path

from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import JournalConfig
from mantle.cluster.fail_stop import FailStop
from mantle.core.errors import JournalFault
from mantle.journal.port import Journal
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.journal.stores.sqlite import FILE_NAME, SqliteStore
from mantle.journal.writer import DurableJournal, Policy


def open_journal(config: JournalConfig, data_dir: Path, fail_stop: FailStop) -> Journal:
    """Raises `ConfigError` when it cannot be opened."""
    if config.store == "none":
        return EphemeralJournal()
    try:
        store = SqliteStore(data_dir)
    except JournalFault as fault:
        raise ConfigError(f"{fault.message}. {remedy(data_dir)}") from None
    return DurableJournal(
        store,
        on_failed=fail_stop.fail,
        wall_s=time.time,
        policy=Policy(config.policy),
        keep_s=config.keep_s,
    )


def remedy(data_dir: Path) -> str:
    """What helps when the journal cannot be trusted; for the operator's terminal, not clients."""
    path = data_dir / FILE_NAME
    return (
        "Mend the disk, then start the server again: it goes on with what was running. If "
        f"`mantle journal verify` calls {path} damaged, move it and {FILE_NAME}-wal away: the "
        "server starts without them, and what was running is lost"
    )
