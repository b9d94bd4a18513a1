"""What does a damaged SQLite file hide? Each fact is kept twice; this asks both places.

SQLite notices most damage only in `PRAGMA integrity_check`; ordinary reading may just skip rows.
Invariant: one damaged page never makes a running ask vanish, nor its tail, unnoticed. Whole tables
are scanned, but not the records' content.
"""

import sqlite3

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


def running_asks(connection: sqlite3.Connection) -> list[str]:
    """Ids of all asks that are not over, oldest first, by their own rows or their requests'."""
    listed = connection.execute(_RUNNING).fetchall()
    by_requests = connection.execute(_RUNNING_BY_REQUESTS).fetchall()
    return list(dict.fromkeys(str(row[0]) for row in [*listed, *by_requests]))


class Census:
    """How many rows each owner has in `records`: by the table alone, and by its index alone."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._scans = [scan for sql in _SCANS if (scan := _scan(connection, sql)) is not None]

    def has_all_rows(self, owner: str) -> bool:
        """Does reading an owner's records, by index and table together, find each of them?"""
        try:
            count, seqs, blobs = self._connection.execute(_FOUND, (owner,)).fetchone()
        except sqlite3.DatabaseError:
            return False
        found = (count, seqs) if count else None
        is_same = all(scan.get(owner) == found for scan in self._scans)
        return bool(self._scans) and is_same and blobs == count


def _scan(connection: sqlite3.Connection, sql: str) -> dict[str, tuple[int, int]] | None:
    """None: one of its pages cannot be read."""
    try:
        rows = connection.execute(sql).fetchall()
    except sqlite3.DatabaseError:
        return None
    return {str(owner): (count, seqs) for owner, count, seqs in rows}
