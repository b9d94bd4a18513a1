"""Which tables and statements are the journal, in any SQL database? Sessions run them.

Invariant: rows of `records` are only added, until their whole ask is forgotten; `asks` and
`requests` are an index over them, and every statement of one commit is in one transaction.
Usage is derived: what `requests` says of those that are over, plus `used`, into which `forget`
moves the sums of what it deletes, in the same transaction. So each token is counted once.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId, TenantId
from mantle.journal.coalesce import coalesce
from mantle.journal.codec import decode, encode, owner_of
from mantle.journal.history import AskHistory, RequestHistory, request_history
from mantle.journal.port import Damage, Recovered
from mantle.journal.record import Accepted, Asked, Finished, Record, Trimmed
from mantle.journal.store_port import AskSummary, StoreWaits, UsageLine

HOUR_S: Final = 3_600

_LISTED_WRONGLY: Final = "its entry in the list of asks is damaged"

_FINISH_REQUEST: Final = """
UPDATE requests SET is_finished = 1, finished_s = ?, outcome = ?,
 input_tokens = ?, cached_tokens = ?, output_tokens = ? WHERE id = ?
"""
_TRIM_REQUEST: Final = """
UPDATE requests SET input_tokens = ?, cached_tokens = ?, output_tokens = ? WHERE id = ?
"""
_FINISH_ASK: Final = """
UPDATE asks SET finished_s = ? WHERE id = (SELECT ask FROM requests WHERE id = ?)
AND finished_s IS NULL
AND NOT EXISTS (SELECT 1 FROM requests WHERE ask = asks.id AND is_finished = 0)
"""
_OVER: Final = "(SELECT id FROM asks WHERE finished_s < ?)"
_FORGOTTEN: Final = f"is_finished = 1 AND (ask IS NULL OR ask IN {_OVER})"
_UNASKED: Final = "SELECT id, is_finished FROM requests WHERE ask IS NULL"
_SUMS: Final = """
count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens)
"""
_KEEP_USAGE: Final = f"""
INSERT INTO used SELECT finished_s - finished_s % {HOUR_S}, tenant, model, lane, outcome, {_SUMS}
FROM requests WHERE {_FORGOTTEN}
GROUP BY finished_s - finished_s % {HOUR_S}, tenant, model, lane, outcome
ON CONFLICT (hour_s, tenant, model, lane, outcome) DO UPDATE SET
 requests = used.requests + excluded.requests,
 input_tokens = used.input_tokens + excluded.input_tokens,
 cached_tokens = used.cached_tokens + excluded.cached_tokens,
 output_tokens = used.output_tokens + excluded.output_tokens
"""
_USAGE: Final = f"""
SELECT hour_s, tenant, model, lane, outcome, sum(requests), sum(input_tokens),
 sum(cached_tokens), sum(output_tokens) FROM (
  SELECT * FROM used
  UNION ALL
  SELECT finished_s - finished_s % {HOUR_S} AS hour_s, tenant, model, lane, outcome,
   1 AS requests, input_tokens, cached_tokens, output_tokens
  FROM requests WHERE is_finished = 1
 ) AS ended WHERE hour_s >= ?
GROUP BY hour_s, tenant, model, lane, outcome ORDER BY hour_s, tenant, model, lane, outcome
"""


class Session(Protocol):
    """One transaction. Parameters are `?`; errors are those of `store_port`."""

    def write(self, sql: str, *values: object) -> None: ...

    def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]: ...


class Complete(Protocol):
    """Is every row there that there must be? A database that checks its pages knows that it is."""

    def has_all_rows(self, owner: str) -> bool: ...


class SqlStore(ABC):
    """`JournalStore` but for opening, compacting and closing, over sessions."""

    _all_asks = "asks"  # the table, read row by row

    @abstractmethod
    def _writing(self) -> contextlib.AbstractContextManager[Session]:
        """All of it or nothing, and only while nobody else has opened the journal."""

    @abstractmethod
    def _reading(self) -> contextlib.AbstractContextManager[Session]:
        """Beside the writer, from any thread."""

    @abstractmethod
    def _now_s(self) -> int: ...

    # --- writing --------------------------------------------------------------------------------
    def commit(self, records: Sequence[Record]) -> None:
        """See `JournalStore.commit`."""
        with self._writing() as session:
            write_records(session, records, self._now_s())

    def forget(self, finished_before_s: int) -> int:
        """See `JournalStore.forget`; also requests whose ask was never written."""
        with self._writing() as session:
            ((asks,),) = session.read(
                "SELECT count(*) FROM asks WHERE finished_s < ?", finished_before_s
            )
            session.write(_KEEP_USAGE, finished_before_s)
            session.write(
                f"DELETE FROM records WHERE owner IN {_OVER}"
                f" OR owner IN (SELECT id FROM requests WHERE {_FORGOTTEN})",
                finished_before_s,
                finished_before_s,
            )
            session.write(f"DELETE FROM requests WHERE {_FORGOTTEN}", finished_before_s)
            session.write("DELETE FROM asks WHERE finished_s < ?", finished_before_s)
            return int(asks)

    # --- reading --------------------------------------------------------------------------------
    def recover(self) -> Recovered:
        """See `JournalStore.recover`."""
        asks: list[AskHistory] = []
        damaged: list[Damage] = []
        with self._reading() as session:
            census = self._census(session)
            for ask_id in self._running(session):
                history = _believed(session, ask_id, census, damaged)
                if history is not None and not history.is_over:
                    asks.append(history)
            asks.sort(key=_arrival)
            known = {request.request.id for ask in asks for request in ask.requests}
            orphans = [one for one in _orphans(session) if one[0] not in known]
        return Recovered(tuple(asks), tuple(orphans), tuple(damaged))

    def history(self, ask_id: str) -> AskHistory | None:
        """See `JournalStore.history`."""
        with self._reading() as session:
            return _ask_history(session, ask_id)

    def find_key(self, tenant_id: TenantId, key_digest: str) -> str | None:
        """See `JournalStore.find_key`."""
        with self._reading() as session:
            rows = session.read(
                "SELECT id FROM asks WHERE tenant = ? AND key_digest = ? AND key_digest != ''"
                " ORDER BY created_s DESC, id DESC LIMIT 1",
                tenant_id,
                key_digest,
            )
        return str(rows[0][0]) if rows else None

    def summaries(self) -> Iterator[AskSummary]:
        """See `JournalStore.summaries`."""
        with self._reading() as session:
            rows = session.read(
                "SELECT id, tenant, route, created_s, finished_s,"
                " (SELECT count(*) FROM requests WHERE ask = asks.id) FROM asks"
                " ORDER BY created_s DESC, id DESC"
            )
        yield from map(_summary, rows)

    def usage(self, since_s: int = 0) -> Iterator[UsageLine]:
        """See `JournalStore.usage`."""
        with self._reading() as session:
            rows = session.read(_USAGE, since_s - since_s % HOUR_S)
        yield from map(_usage_line, rows)

    def verify(self) -> list[Damage]:
        """See `JournalStore.verify`."""
        damaged: list[Damage] = []
        with self._reading() as session:
            damaged += self._damage_below(session)
            census = self._census(session)
            columns = "id, tenant, route, created_s, key_digest, finished_s"
            for row in session.read(f"SELECT {columns} FROM {self._all_asks}"):
                history = _believed(session, str(row[0]), census, damaged)
                if history is not None and not _is_listed_rightly(row, history):
                    damaged.append(Damage(str(row[0]), _LISTED_WRONGLY))
            damaged += _unasked_damage(session)
        for _ in self.summaries():  # raises when the list of asks cannot be read
            pass
        for _ in self.usage():
            pass
        return damaged

    def _running(self, session: Session) -> list[str]:
        """Ids of all asks that are not over, oldest first."""
        rows = session.read("SELECT id FROM asks WHERE finished_s IS NULL ORDER BY created_s, id")
        return [str(ask_id) for (ask_id,) in rows]

    def _census(self, session: Session) -> Complete:
        return _Trusted()

    def _damage_below(self, session: Session) -> list[Damage]:
        """What the database itself finds wrong with its files."""
        return []


def write_records(session: Session, records: Sequence[Record], now_s: int) -> None:
    """The statements of one commit."""
    for record in coalesce(records):
        session.write(
            "INSERT INTO records (owner, blob) VALUES (?, ?)", owner_of(record), encode(record)
        )
        _index(session, record, now_s)


def _index(session: Session, record: Record, now_s: int) -> None:
    if isinstance(record, Accepted):
        one = record.request
        session.write(
            "INSERT INTO requests (id, tenant, model, lane) VALUES (?, ?, ?, ?)",
            *(one.id, one.tenant_id, one.model_id, one.lane.value),
        )
    elif isinstance(record, Asked):
        session.write(
            "INSERT INTO asks VALUES (?, ?, ?, ?, ?, NULL)",
            *_row_of(record),
        )
        for choice in record.choices:
            session.write("UPDATE requests SET ask = ? WHERE id = ?", record.id, choice.request_id)
        session.write(_FINISH_ASK, now_s, record.choices[0].request_id)
    elif isinstance(record, Finished | Trimmed):
        used = record.usage
        counts = (used.input_tokens, used.cached_tokens, used.output_tokens, record.request_id)
        if isinstance(record, Trimmed):
            session.write(_TRIM_REQUEST, *counts)
        else:
            session.write(_FINISH_REQUEST, now_s, record.outcome.value, *counts)
            session.write(_FINISH_ASK, now_s, record.request_id)


def _arrival(ask: AskHistory) -> tuple[int, float]:
    """Whole seconds of wall time, then the server's own clock, so that first come is first served
    again. (Two lives of a server within one second may mix.)
    """
    return ask.asked.created_s, ask.requests[0].request.accepted_ms


class _Trusted:
    def has_all_rows(self, owner: str) -> bool:
        return True


def _row_of(asked: Asked) -> tuple[str, str, str, int, str]:
    """What the list of asks says of it."""
    return (asked.id, asked.tenant_id, asked.route, asked.created_s, asked.key_digest)


def _is_listed_rightly(row: tuple[Any, ...], history: AskHistory) -> bool:
    return row[:5] == _row_of(history.asked) and history.is_over == (row[5] is not None)


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


def _usage_line(row: tuple[Any, ...]) -> UsageLine:
    hour_s, tenant, model, lane, outcome, *sums = row
    try:
        return UsageLine(int(hour_s), TenantId(tenant), model, lane, outcome, *map(int, sums))
    except (TypeError, ValueError):
        raise JournalFault("the sums of what was used are damaged") from None


def _believed(
    session: Session, ask_id: str, census: Complete, damaged: list[Damage]
) -> AskHistory | None:
    """The history of an ask that there must be, unless it is damaged; then that is noted."""
    try:
        return _listed_history(session, ask_id, census)
    except StoreWaits:
        raise  # says nothing about this ask
    except JournalFault as fault:
        damaged.append(Damage(ask_id, fault.message))
        return None


def _listed_history(session: Session, ask_id: str, census: Complete) -> AskHistory:
    """Raises `JournalFault` when anything of it may be missing."""
    history = _ask_history(session, ask_id)
    if history is None:
        raise JournalFault(_LISTED_WRONGLY)
    owners = (ask_id, *(choice.request_id for choice in history.asked.choices))
    if not all(map(census.has_all_rows, owners)):
        raise JournalFault("the file is damaged where its records are")
    return history


def _ask_history(session: Session, ask_id: str) -> AskHistory | None:
    rows = session.read("SELECT finished_s FROM asks WHERE id = ?", ask_id)
    if not rows:
        return None
    records = _records(session, ask_id)
    if len(records) != 1 or not isinstance(records[0], Asked):
        raise JournalFault("an ask was not written exactly once")
    asked = records[0]
    requests = tuple(_request(session, choice.request_id) for choice in asked.choices)
    history = AskHistory(asked, requests)
    if rows[0][0] is not None and not history.is_over:
        raise JournalFault("an ask was over, and its end is missing")
    return history


def _request(session: Session, request_id: RequestId) -> RequestHistory:
    return request_history(_records(session, request_id))


def _orphans(session: Session) -> Iterator[tuple[RequestId, Epoch]]:
    """Requests whose ask was never written and that have no end, with their newest epochs."""
    for request_id, is_finished in session.read(_UNASKED):
        try:
            history = _request(session, request_id)
        except StoreWaits:
            raise
        except JournalFault:
            if not is_finished:
                yield RequestId(request_id), FIRST_EPOCH
        else:
            if history.finished is None:
                yield RequestId(request_id), history.epoch


def _unasked_damage(session: Session) -> Iterator[Damage]:
    """Requests without an ask that are not what the list of requests says of them."""
    for request_id, is_finished in session.read(_UNASKED):
        try:
            is_over = _request(session, request_id).finished is not None
        except StoreWaits:
            raise
        except JournalFault as fault:
            yield Damage(str(request_id), fault.message)
        else:
            if is_over != bool(is_finished):
                yield Damage(str(request_id), "its entry in the list of requests is damaged")


def _records(session: Session, owner: str) -> list[Record]:
    rows = session.read("SELECT blob FROM records WHERE owner = ? ORDER BY seq", owner)
    if not all(isinstance(blob, bytes) for (blob,) in rows):
        raise JournalFault("a record is not one")
    return [decode(blob, owner) for (blob,) in rows]
