"""The journal in one SQLite file: for one machine, with nothing to install.

WAL with `synchronous=FULL`: a commit returns once its records would survive a loss of power.
Invariant: the newest opener owns the journal: an older one's commits fail.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mantle.journal.port import Damage
from mantle.journal.store_port import (
    Compacted,
    Opening,
    StoreBroken,
    StoreFenced,
    StoreFull,
)
from mantle.journal.stores.sql import Session, SqlStore
from mantle.journal.stores.sqlite_damage import Census, running_asks

FILE_NAME: Final = "journal.db"

_BUSY_S_MAX: Final = 5.0
_CHUNK_BYTES: Final = 1 << 20
_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS owner (only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER);
INSERT OR IGNORE INTO owner VALUES (1, 0);
CREATE TABLE IF NOT EXISTS asks (
    id TEXT PRIMARY KEY, tenant TEXT, route TEXT, created_s INTEGER, key_digest TEXT,
    finished_s INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS asks_by_key ON asks (tenant, key_digest) WHERE key_digest != '';
CREATE INDEX IF NOT EXISTS asks_running ON asks (finished_s) WHERE finished_s IS NULL;
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, ask TEXT, is_finished INTEGER DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_by_ask ON requests (ask);
CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, owner TEXT, blob BLOB);
CREATE INDEX IF NOT EXISTS records_by_owner ON records (owner, seq);
"""
_SCHEMA_2: Final = """
ALTER TABLE requests ADD COLUMN tenant TEXT DEFAULT '';
ALTER TABLE requests ADD COLUMN model TEXT DEFAULT '';
ALTER TABLE requests ADD COLUMN lane TEXT DEFAULT '';
ALTER TABLE requests ADD COLUMN finished_s INTEGER DEFAULT 0;
ALTER TABLE requests ADD COLUMN outcome TEXT DEFAULT '';
ALTER TABLE requests ADD COLUMN input_tokens INTEGER DEFAULT 0;
ALTER TABLE requests ADD COLUMN cached_tokens INTEGER DEFAULT 0;
ALTER TABLE requests ADD COLUMN output_tokens INTEGER DEFAULT 0;
CREATE TABLE used (
    hour_s INTEGER, tenant TEXT, model TEXT, lane TEXT, outcome TEXT, requests INTEGER,
    input_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER,
    PRIMARY KEY (hour_s, tenant, model, lane, outcome)
) WITHOUT ROWID;
"""


class SqliteStore(SqlStore):
    """Implements `JournalStore`. `commit` and `forget` belong to one thread, reading to any.

    `synchronous` is FULL but for the tests that show why.
    """

    _all_asks = "asks NOT INDEXED"

    def __init__(
        self,
        folder: Path,
        *,
        opening: Opening = Opening.OWNING,
        synchronous: str = "FULL",
        pages_max: int | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises `StoreBroken` when the file is there and cannot be opened."""
        self.path = folder / FILE_NAME
        self._wall_s = wall_s
        self._connection: sqlite3.Connection | None = None
        self._owner_epoch = 0
        if opening is not Opening.READING:
            with _told():
                self._open(opening, synchronous, pages_max)

    def _open(self, opening: Opening, synchronous: str, pages_max: int | None) -> None:
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds prompts
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S_MAX, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":  # with a rollback journal, FULL does not make a commit durable
            raise StoreBroken("the journal's disk cannot hold a write-ahead log")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA secure_delete = ON")
        _bring_up_to_date(connection)
        if pages_max is not None:
            connection.execute(f"PRAGMA max_page_count = {pages_max}")
        if opening is Opening.OWNING:
            connection.execute("BEGIN IMMEDIATE")  # so nobody else writes to the log just now
            _write_anew(self.path.with_name(FILE_NAME + "-wal"))
            connection.execute("UPDATE owner SET epoch = epoch + 1")
            connection.execute("COMMIT")
        (self._owner_epoch,) = connection.execute("SELECT epoch FROM owner").fetchone()
        self._connection = connection

    def compact(self, finished_before_s: int) -> Compacted:
        """See `JournalStore.compact`."""
        before = self._size_bytes()
        asks = self.forget(finished_before_s)
        assert self._connection is not None, "opened for reading"
        with _told():
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return Compacted(asks, before, self._size_bytes())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _now_s(self) -> int:
        return int(self._wall_s())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        connection = self._connection
        assert connection is not None, "opened for reading"
        with _told():
            connection.execute("BEGIN IMMEDIATE")
            try:
                (epoch,) = connection.execute("SELECT epoch FROM owner").fetchone()
                if epoch != self._owner_epoch:
                    raise StoreFenced("another server has opened this journal")
                yield _SqliteSession(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        with _told():
            connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
            connection.text_factory = _text
            connection.execute("BEGIN")  # all that is read is of one moment, whatever is written
            try:
                yield _SqliteSession(connection)
            finally:
                connection.close()

    def _running(self, session: Session) -> list[str]:
        return running_asks(session)

    def _census(self, session: Session) -> Census:
        return Census(session)

    def _damage_below(self, session: Session) -> list[Damage]:
        rows = session.read("PRAGMA integrity_check(8)")
        return [
            Damage("file", "its pages contradict each other") for (said,) in rows if said != "ok"
        ]

    def _size_bytes(self) -> int:
        names = (self.path, self.path.with_name(FILE_NAME + "-wal"))
        return sum(name.stat().st_size for name in names if name.exists())


class _SqliteSession:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def write(self, sql: str, *values: object) -> None:
        self._connection.execute(sql, values)

    def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with _told():
            return self._connection.execute(sql, values).fetchall()


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """The tables as they are today, whatever version the file has."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < _VERSION:
        for statement in (_SCHEMA + _SCHEMA_2).split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _write_anew(log: Path) -> None:
    """Write the log's bytes over themselves; the next commit's fsync makes them durable.

    The last owner may have died of a failed fsync. Then what it wrote last is readable, but in the
    page cache alone, and counted as clean: no fsync would write it, or make what comes after it in
    the log mean anything. A checkpoint is no way out: until the log's end is durable, a power loss
    would replay the old, shorter log over the newer file.
    """
    try:
        with log.open("r+b", buffering=0) as file:
            for start in range(0, file.seek(0, os.SEEK_END), _CHUNK_BYTES):
                os.pwrite(file.fileno(), os.pread(file.fileno(), _CHUNK_BYTES, start), start)
    except OSError:
        raise StoreBroken("the journal's log cannot be written anew") from None


def _text(damaged_or_not: bytes) -> str:
    return damaged_or_not.decode(errors="replace")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """SQLite's errors in our words; no path, no content."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull("the journal's disk is full") from None
        name = getattr(error, "sqlite_errorname", "unknown")
        raise StoreBroken(f"the journal's file cannot be written or read ({name})") from None
    except UnicodeDecodeError:  # sqlite3 quotes what is damaged, and trips over it
        raise StoreBroken("the journal's file is damaged") from None
