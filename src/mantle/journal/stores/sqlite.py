"""The journal in one SQLite file: for one machine, with nothing to install.

WAL with `synchronous=FULL`: a commit returns once its records would survive a loss of power.
Invariant: rows of `records` are only added, until their whole ask is forgotten; `asks` and
`requests` are an index over them. The newest opener owns the journal: an older one's commits fail.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId, TenantId
from mantle.journal.coalesce import coalesce
from mantle.journal.codec import decode, encode, owner_of
from mantle.journal.history import AskHistory, RequestHistory, request_history
from mantle.journal.port import Damage, Recovered
from mantle.journal.record import Accepted, Asked, Finished, Record
from mantle.journal.store_port import (
    AskSummary,
    Compacted,
    StoreBroken,
    StoreFenced,
    StoreFull,
)
from mantle.journal.stores.sqlite_damage import Census, running_asks

FILE_NAME: Final = "journal.db"

_BUSY_S_MAX: Final = 5.0
_CHUNK_BYTES: Final = 1 << 20
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
_FINISH_ASK: Final = """
UPDATE asks SET finished_s = ? WHERE id = (SELECT ask FROM requests WHERE id = ?)
AND finished_s IS NULL
AND NOT EXISTS (SELECT 1 FROM requests WHERE ask = asks.id AND is_finished = 0)
"""


class Opening(StrEnum):
    """What for? `OWNING` fences every earlier owner; `BESIDE` one, only `compact` is allowed."""

    OWNING = "owning"
    BESIDE = "beside"
    READING = "reading"


class SqliteStore:
    """Implements `JournalStore`. `commit` and `forget` belong to one thread, reading to any.

    `synchronous` is FULL but for the tests that show why.
    """

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
        connection.executescript(_SCHEMA)
        if pages_max is not None:
            connection.execute(f"PRAGMA max_page_count = {pages_max}")
        if opening is Opening.OWNING:
            connection.execute("BEGIN IMMEDIATE")  # so nobody else writes to the log just now
            _write_anew(self.path.with_name(FILE_NAME + "-wal"))
            connection.execute("UPDATE owner SET epoch = epoch + 1")
            connection.execute("COMMIT")
        (self._owner_epoch,) = connection.execute("SELECT epoch FROM owner").fetchone()
        self._connection = connection

    # --- writing --------------------------------------------------------------------------------
    def commit(self, records: Sequence[Record]) -> None:
        """See `JournalStore.commit`."""
        with _told(), self._transaction() as connection:
            now_s = int(self._wall_s())
            for record in coalesce(records):
                owner = owner_of(record)
                connection.execute(
                    "INSERT INTO records (owner, blob) VALUES (?, ?)", (owner, encode(record))
                )
                self._index(connection, record, now_s)

    def _index(self, connection: sqlite3.Connection, record: Record, now_s: int) -> None:
        if isinstance(record, Accepted):
            connection.execute("INSERT INTO requests (id) VALUES (?)", (record.request.id,))
        elif isinstance(record, Asked):
            connection.execute("INSERT INTO asks VALUES (?, ?, ?, ?, ?, NULL)", _row_of(record))
            for choice in record.choices:
                connection.execute(
                    "UPDATE requests SET ask = ? WHERE id = ?", (record.id, choice.request_id)
                )
            connection.execute(_FINISH_ASK, (now_s, record.choices[0].request_id))
        elif isinstance(record, Finished):
            connection.execute(
                "UPDATE requests SET is_finished = 1 WHERE id = ?", (record.request_id,)
            )
            connection.execute(_FINISH_ASK, (now_s, record.request_id))

    def forget(self, finished_before_s: int) -> int:
        """See `JournalStore.forget`; also requests whose ask was never written."""
        with _told(), self._transaction() as connection:
            over = connection.execute(
                "SELECT id FROM asks WHERE finished_s < ?", (finished_before_s,)
            ).fetchall()
            for (ask_id,) in over:
                connection.execute(
                    "DELETE FROM records WHERE owner = ?1"
                    " OR owner IN (SELECT id FROM requests WHERE ask = ?1)",
                    (ask_id,),
                )
                connection.execute("DELETE FROM requests WHERE ask = ?", (ask_id,))
                connection.execute("DELETE FROM asks WHERE id = ?", (ask_id,))
            stray = "SELECT id FROM requests WHERE ask IS NULL AND is_finished = 1"
            connection.execute(f"DELETE FROM records WHERE owner IN ({stray})")
            connection.execute("DELETE FROM requests WHERE ask IS NULL AND is_finished = 1")
            return len(over)

    def compact(self, finished_before_s: int) -> Compacted:
        """See `JournalStore.compact`."""
        before = self._size_bytes()
        asks = self.forget(finished_before_s)
        assert self._connection is not None, "opened for reading"
        with _told():
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return Compacted(asks, before, self._size_bytes())

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and only while nobody else has opened the journal."""
        connection = self._connection
        assert connection is not None, "opened for reading"
        connection.execute("BEGIN IMMEDIATE")
        try:
            (epoch,) = connection.execute("SELECT epoch FROM owner").fetchone()
            if epoch != self._owner_epoch:
                raise StoreFenced("another server has opened this journal")
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # --- reading --------------------------------------------------------------------------------
    def recover(self) -> Recovered:
        """See `JournalStore.recover`."""
        asks: list[AskHistory] = []
        damaged: list[Damage] = []
        with _told(), self._reading() as connection:
            census = Census(connection)
            for ask_id in running_asks(connection):
                try:
                    history = _listed_history(connection, ask_id, census)
                except JournalFault as fault:
                    damaged.append(Damage(ask_id, fault.message))
                else:
                    if not history.is_over:
                        asks.append(history)
            known = {request.request.id for ask in asks for request in ask.requests}
            orphans = [
                (RequestId(request_id), _epoch_of(connection, RequestId(request_id)))
                for (request_id,) in connection.execute(
                    "SELECT id FROM requests WHERE ask IS NULL AND is_finished = 0"
                ).fetchall()
                if request_id not in known
            ]
        return Recovered(tuple(asks), tuple(orphans), tuple(damaged))

    def history(self, ask_id: str) -> AskHistory | None:
        """See `JournalStore.history`."""
        with _told(), self._reading() as connection:
            return _ask_history(connection, ask_id)

    def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        """See `JournalStore.find_key`."""
        with _told(), self._reading() as connection:
            row = connection.execute(
                "SELECT id FROM asks WHERE tenant = ? AND key_digest = ? AND key_digest != ''"
                " ORDER BY created_s DESC, id DESC LIMIT 1",
                (tenant_id, key_digest),
            ).fetchone()
        return None if row is None else str(row[0])

    def summaries(self) -> Iterator[AskSummary]:
        """See `JournalStore.summaries`."""
        with _told(), self._reading() as connection:
            rows = connection.execute(
                "SELECT id, tenant, route, created_s, finished_s,"
                " (SELECT count(*) FROM requests WHERE ask = asks.id) FROM asks"
                " ORDER BY created_s DESC, id DESC"
            )
            yield from map(_summary, rows)

    def verify(self) -> list[Damage]:
        """See `JournalStore.verify`."""
        damaged: list[Damage] = []
        with _told(), self._reading() as connection:
            for (problem,) in connection.execute("PRAGMA integrity_check(8)").fetchall():
                if problem != "ok":
                    damaged.append(Damage("file", "its pages contradict each other"))
            census = Census(connection)
            for row in connection.execute("SELECT * FROM asks NOT INDEXED").fetchall():
                ask_id = str(row[0])
                try:
                    history = _listed_history(connection, ask_id, census)
                    if row[:5] != _row_of(history.asked) or history.is_over != (row[5] is not None):
                        raise JournalFault("its entry in the list of asks is damaged")
                except JournalFault as fault:
                    damaged.append(Damage(ask_id, fault.message))
        for _ in self.summaries():  # raises when the list of asks cannot be read
            pass
        return damaged

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
        connection.text_factory = _text
        connection.execute("BEGIN")  # all that is read is of one moment, whatever is written
        try:
            yield connection
        finally:
            connection.close()

    def _size_bytes(self) -> int:
        names = (self.path, self.path.with_name(FILE_NAME + "-wal"))
        return sum(name.stat().st_size for name in names if name.exists())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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


def _row_of(asked: Asked) -> tuple[str, str, str, int, str]:
    """What the list of asks says of it."""
    return (asked.id, asked.tenant_id, asked.route, asked.created_s, asked.key_digest)


def _summary(row: tuple[object, ...]) -> AskSummary:
    match row:
        case (
            str(ask_id),
            str(tenant),
            str(route),
            int(made_s),
            int() | None as over_s,
            int(count),
        ):
            return AskSummary(ask_id, TenantId(tenant), route, made_s, over_s, count)
    raise JournalFault("the list of asks is damaged; `mantle journal verify` says where")


def _text(damaged_or_not: bytes) -> str:
    return damaged_or_not.decode(errors="replace")


def _listed_history(connection: sqlite3.Connection, ask_id: str, census: Census) -> AskHistory:
    """Of an ask that there must be. Raises `JournalFault` when anything of it may be missing."""
    history = _ask_history(connection, ask_id)
    if history is None:
        raise JournalFault("its entry in the list of asks is damaged")
    owners = (ask_id, *(choice.request_id for choice in history.asked.choices))
    if not all(map(census.has_all_rows, owners)):
        raise JournalFault("the file is damaged where its records are")
    return history


def _ask_history(connection: sqlite3.Connection, ask_id: str) -> AskHistory | None:
    row = connection.execute("SELECT finished_s FROM asks WHERE id = ?", (ask_id,)).fetchone()
    if row is None:
        return None
    records = _records(connection, ask_id)
    if len(records) != 1 or not isinstance(records[0], Asked):
        raise JournalFault("an ask was not written exactly once")
    asked = records[0]
    requests = tuple(_request(connection, choice.request_id) for choice in asked.choices)
    history = AskHistory(asked, requests)
    if row[0] is not None and not history.is_over:
        raise JournalFault("an ask was over, and its end is missing")
    return history


def _request(connection: sqlite3.Connection, request_id: RequestId) -> RequestHistory:
    return request_history(_records(connection, request_id))


def _epoch_of(connection: sqlite3.Connection, request_id: RequestId) -> Epoch:
    """The newest epoch of a request that nobody will go on with."""
    try:
        return _request(connection, request_id).epoch
    except JournalFault:
        return FIRST_EPOCH


def _records(connection: sqlite3.Connection, owner: str) -> list[Record]:
    try:
        rows = connection.execute(
            "SELECT blob FROM records WHERE owner = ? ORDER BY seq", (owner,)
        ).fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        raise JournalFault("the file is damaged where its records are") from None
    if not all(isinstance(blob, bytes) for (blob,) in rows):
        raise JournalFault("a record is not one")
    return [decode(blob, owner) for (blob,) in rows]


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
