"""The journal in a PostgreSQL database: for machines whose disks may be lost.

Invariant: every transaction that writes first takes the owner's row under the epoch it was opened
with (so the newest opener owns the journal), and a commit counts itself in that row. When the
connection breaks, whether a commit landed is read there: nothing is lost, nothing written twice.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, LiteralString

import psycopg
from psycopg import errors, sql

from mantle.journal.record import Record
from mantle.journal.store_port import (
    Compacted,
    Opening,
    StoreAway,
    StoreBroken,
    StoreFenced,
    StoreFull,
)
from mantle.journal.stores.sql import Session, SqlStore, write_records

CONNECT_S_MAX: Final = 5

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS owner (
    only_row BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch BIGINT NOT NULL, commits BIGINT NOT NULL
);
INSERT INTO owner VALUES (true, 0, 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS asks (
    id TEXT PRIMARY KEY, tenant TEXT, route TEXT, created_s BIGINT, key_digest TEXT,
    finished_s BIGINT
);
CREATE INDEX IF NOT EXISTS asks_by_key ON asks (tenant, key_digest) WHERE key_digest <> '';
CREATE INDEX IF NOT EXISTS asks_running ON asks (finished_s) WHERE finished_s IS NULL;
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY, ask TEXT, is_finished INTEGER DEFAULT 0, tenant TEXT, model TEXT,
    lane TEXT, finished_s BIGINT DEFAULT 0, outcome TEXT DEFAULT '', input_tokens BIGINT DEFAULT 0,
    cached_tokens BIGINT DEFAULT 0, output_tokens BIGINT DEFAULT 0
);
CREATE INDEX IF NOT EXISTS requests_by_ask ON requests (ask);
CREATE TABLE IF NOT EXISTS used (
    hour_s BIGINT, tenant TEXT, model TEXT, lane TEXT, outcome TEXT, requests BIGINT,
    input_tokens BIGINT, cached_tokens BIGINT, output_tokens BIGINT,
    PRIMARY KEY (hour_s, tenant, model, lane, outcome)
);
CREATE TABLE IF NOT EXISTS records (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner TEXT, blob BYTEA
);
CREATE INDEX IF NOT EXISTS records_by_owner ON records (owner, seq);
"""
_TABLES: Final = ("records", "requests", "asks")


class PostgresStore(SqlStore):
    """Implements `JournalStore` in the schema `schema` of the database at `url` (libpq's form).

    `commit` and `forget` belong to one thread, reading to any.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "mantle",
        opening: Opening = Opening.OWNING,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises `StoreAway` when there is no such database, `StoreBroken` when it would lose
        what it has acknowledged (`fsync` is off).
        """
        self._url = url
        self._schema = schema
        self._wall_s = wall_s
        self._connection: psycopg.Connection | None = None
        self._owner_epoch = 0
        self._commits = 0
        self._may_have_landed = False
        if opening is not Opening.READING:
            with _told():
                self._open(opening)

    def _open(self, opening: Opening) -> None:
        with self._connect() as connection:
            if _said(connection, "SHOW fsync") != ("on",):
                raise StoreBroken("the journal's database runs with fsync off and would lose it")
            with connection.transaction():
                # Two servers may start at once, and CREATE … IF NOT EXISTS is not safe then.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('mantle journal'))")
                self._create_schema(connection)
                connection.execute(_SCHEMA)
                if opening is Opening.OWNING:
                    connection.execute("UPDATE owner SET epoch = epoch + 1")
                found = _said(connection, "SELECT epoch, commits FROM owner")
                self._owner_epoch, self._commits = found

    def _create_schema(self, connection: psycopg.Connection) -> None:
        """Only where it is missing: a cautious administrator has made it, and grants no more."""
        there = connection.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)
        ).fetchone()
        if there is None:
            create = sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema))
            connection.execute(create)

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S_MAX)
        path = sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema))
        connection.execute(path)
        connection.execute("SET synchronous_commit TO on")
        return connection

    def commit(self, records: Sequence[Record]) -> None:
        """See `JournalStore.commit`."""
        with self._writing() as session:
            if self._may_have_landed:
                ((commits,),) = session.read("SELECT commits FROM owner")
                if commits == self._commits + 1:
                    self._landed()
                    return
            session.write("UPDATE owner SET commits = ?", self._commits + 1)
            write_records(session, records, self._now_s())
            self._may_have_landed = True
        self._landed()

    def _landed(self) -> None:
        self._commits += 1
        self._may_have_landed = False

    def compact(self, finished_before_s: int) -> Compacted:
        """See `JournalStore.compact`; commits wait meanwhile."""
        before = self._size_bytes()
        asks = self.forget(finished_before_s)
        with _told(), self._connect() as connection:
            for table in _TABLES:
                connection.execute(sql.SQL("VACUUM FULL {}").format(sql.Identifier(table)))
        return Compacted(asks, before, self._size_bytes())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _now_s(self) -> int:
        return int(self._wall_s())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Session]:
        with _told():
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            connection = self._connection
            with connection.pipeline(), connection.transaction():
                mine = connection.execute(
                    "SELECT 1 FROM owner WHERE epoch = %s FOR UPDATE", (self._owner_epoch,)
                )
                if mine.fetchone() is None:
                    raise StoreFenced("another server has opened this journal")
                yield _PostgresSession(connection)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        with _told(), self._connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield _PostgresSession(connection)

    def _size_bytes(self) -> int:
        with self._reading() as session:
            ((size,),) = session.read(
                "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(?::text[]) name",
                list(_TABLES),
            )
        return int(size)


class _PostgresSession:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def write(self, sql: str, *values: object) -> None:
        self._connection.execute(_in_their_form(sql), values)

    def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(_in_their_form(sql), values).fetchall()


@lru_cache(maxsize=64)
def _in_their_form(sql: str) -> bytes:
    """Our statements with psycopg's placeholders (as bytes: a plain `str` might be anyone's)."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _said(connection: psycopg.Connection, question: LiteralString) -> tuple[Any, ...]:
    row = connection.execute(question).fetchone()
    assert row is not None, question
    return row


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """PostgreSQL's errors in our words; no address, no content."""
    try:
        yield
    except (errors.DiskFull, errors.OutOfMemory):
        raise StoreFull("the journal's database has no room") from None
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        raise StoreBroken("the journal's database holds no journal") from None
    except psycopg.OperationalError as error:
        why = f" ({error.sqlstate})" if error.sqlstate else ""
        raise StoreAway(f"the journal's database cannot be reached{why}") from None
    except psycopg.Error as error:
        why = error.sqlstate or type(error).__name__
        raise StoreBroken(f"the journal's database refused a statement ({why})") from None
