"""Where are the tables, and are they up to date? Opens the database and migrates it.

Invariant: whoever opens the database finds the newest tables; two processes that open it at once
migrate it once. What is special about SQLite stands here and nowhere else.
"""

import os
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mantle.cluster.config import ConfigError

FILE_NAME: Final = "control.db"

_WRITES: Final = "mantle_writes"
_BUSY_MS: Final = 5_000


def open_database(data_dir: Path) -> sa.Engine:
    """`control.db` of a data folder, readable by its owner only. Raises `ConfigError`."""
    path = data_dir / FILE_NAME
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        engine = engine_of(f"sqlite:///{path}")
        migrate(engine)
    except (OSError, sa.exc.DatabaseError) as error:
        raise ConfigError(f"{path}: can not be opened ({_reason(error)})") from None
    return engine


def engine_of(url: str) -> sa.Engine:
    """An engine whose transactions behave alike on every database."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def writing(engine: sa.Engine) -> sa.Engine:
    """The same engine, for transactions that write: they take turns from their beginning."""
    return engine.execution_options(**{_WRITES: True})


def migrate(engine: sa.Engine, *, target: str = "head") -> None:
    """Bring the tables up to date. Raises `ConfigError` for tables of a newer Mantle."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    with engine.connect() as connection:
        if _version(connection) == head:
            return
    with writing(engine).begin() as connection:
        version = _version(connection)
        if version is not None and version not in {s.revision for s in scripts.walk_revisions()}:
            raise ConfigError(
                f"the control plane's tables are of a newer Mantle (version {version}); "
                "update Mantle or restore the older database"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, target)


def _version(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _set_up_sqlite(dbapi_connection: Any, _record: object) -> None:
    dbapi_connection.isolation_level = None  # we begin transactions, not the driver
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "not possible").lower()
    return " ".join(str(getattr(error, "orig", error)).split())
