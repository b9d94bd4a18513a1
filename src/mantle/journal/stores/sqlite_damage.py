"""What does a damaged SQLite file hide? Each fact is kept twice; this asks both places.

SQLite notices most damage only in `PRAGMA integrity_check`; ordinary reading may just skip rows.
Invariant: one damaged page never makes a running ask vanish, nor its tail, unnoticed. Whole tables
are scanned, but not the records' content.
"""

from mantle.core.errors import JournalFault
from mantle.journal.stores.sql import Session

_RUNNING = """
SELECT id FROM asks NOT INDEXED WHERE finished_s IS NULL
OR id IN (SELECT ask FROM requests NOT INDEXED WHERE is_finished = 0) ORDER BY created_s, id
"""
_RUNNING_BY_REQUESTS = """
SELECT DISTINCT ask FROM requests NOT INDEXED WHERE is_finished = 0 AND ask IS NOT NULL
"""
_SCANS = (
    "SELECT owner, count(*), sum(seq) FROM records NOT INDEXED GROUP BY owner",
    "SELECT owner, count(*), sum(seq) FROM records INDEXED BY records_by_owner GROUP BY owner",
)
_FOUND = "SELECT count(*), sum(seq), count(blob) FROM records WHERE owner = ?"


def running_asks(session: Session) -> list[str]:
    """Ids of all asks that are not over, oldest first, by their own rows or their requests'."""
    listed = session.read(_RUNNING)
    by_requests = session.read(_RUNNING_BY_REQUESTS)
    return list(dict.fromkeys(str(row[0]) for row in [*listed, *by_requests]))


class Census:
    """How many rows each owner has in `records`: by the table alone, and by its index alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._scans = [scan for sql in _SCANS if (scan := _scan(session, sql)) is not None]

    def has_all_rows(self, owner: str) -> bool:
        """Does reading an owner's records, by index and table together, find each of them?"""
        try:
            ((count, seqs, blobs),) = self._session.read(_FOUND, owner)
        except JournalFault:
            return False
        found = (count, seqs) if count else None
        is_same = all(scan.get(owner) == found for scan in self._scans)
        return bool(self._scans) and is_same and blobs == count


def _scan(session: Session, sql: str) -> dict[str, tuple[int, int]] | None:
    """None: one of its pages cannot be read."""
    try:
        rows = session.read(sql)
    except JournalFault:
        return None
    return {str(owner): (count, seqs) for owner, count, seqs in rows}
