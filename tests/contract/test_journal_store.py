"""Does every store keep what it promised? One suite, each store."""

import contextlib
import dataclasses
import itertools
import sqlite3
import subprocess
import sys

import pytest

import mantle.journal.stores.sqlite as sqlite_module
from mantle.core.epoch import Epoch
from mantle.core.ids import ReplicaId, TenantId
from mantle.core.tokens import Usage
from mantle.journal.record import Dispatched, Parked, Trimmed
from mantle.journal.store_port import Opening, StoreFenced, StoreFull
from mantle.journal.stores.postgres import PostgresStore
from mantle.journal.stores.sql import HOUR_S
from mantle.journal.stores.sqlite import FILE_NAME, SqliteStore
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, finished, scored, tokens, whole


class SqliteFamily:
    """Stores over one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.clock_s = 2_000.0

    def open(self, **options):
        return SqliteStore(self.folder, wall_s=lambda: self.clock_s, **options)

    def open_code(self):
        """An expression that opens it in another process."""
        return (
            "__import__('mantle.journal.stores.sqlite', fromlist=['x'])"
            f".SqliteStore(__import__('pathlib').Path({str(self.folder)!r}))"
        )

    def kept(self):
        """All bytes there are on the disk."""
        return b"".join(path.read_bytes() for path in self.folder.iterdir())

    def tamper(self, statement, *values):
        """Change rows behind the store's back; what the statement gives."""
        with contextlib.closing(sqlite3.connect(self.folder / FILE_NAME)) as raw:
            rows = raw.execute(statement, values).fetchall()
            raw.commit()
            return rows


class PostgresFamily:
    """Stores in one schema."""

    def __init__(self, server, schema):
        self.server = server
        self.schema = schema
        self.clock_s = 2_000.0

    def open(self, **options):
        return PostgresStore(
            self.server.url, schema=self.schema, wall_s=lambda: self.clock_s, **options
        )

    def open_code(self):
        return (
            "__import__('mantle.journal.stores.postgres', fromlist=['x'])"
            f".PostgresStore({self.server.url!r}, schema={self.schema!r})"
        )

    def kept(self):
        self.server.execute("CHECKPOINT")
        paths = self.server.execute(
            "SELECT pg_relation_filepath(c.oid) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = relnamespace WHERE nspname = %s AND relkind IN ('r', 'i', 't')",
            self.schema,
        )
        return b"".join((self.server.folder / "data" / path).read_bytes() for (path,) in paths)

    def tamper(self, statement, *values):
        statement = statement.replace("?", "%s").replace("records", f"{self.schema}.records")
        return self.server.execute(statement, *values)


@pytest.fixture(params=["sqlite", "postgres"])
def family(request, tmp_path):
    if request.param == "sqlite":
        return SqliteFamily(tmp_path)
    server = request.getfixturevalue("postgres")
    return PostgresFamily(server, request.getfixturevalue("postgres_schema"))


@pytest.fixture
def store(family):
    opened = family.open()
    yield opened
    opened.close()


def test_unfinished_ask_is_found_again_with_all_its_tokens(family, store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    store.commit([scored(request, 0, 5, 6)])
    store.commit([Parked(request.id, Epoch(1))])
    store.close()
    again = family.open()
    (ask,) = again.recover().asks
    (history,) = ask.requests
    assert history.request == request
    assert history.output == [5, 6]
    assert [score.token_id for score in history.scores] == [5, 6]
    assert history.finished is None
    again.close()


def test_asks_of_one_second_come_back_in_their_order(store):
    for name, accepted_ms in (("req_c", 1.0), ("req_a", 2.0), ("req_b", 3.0)):
        request = dataclasses.replace(a_request(), accepted_ms=accepted_ms)
        store.commit([*begun(request), ask_of(request, ask_id=name)])
    assert [ask.asked.id for ask in store.recover().asks] == ["req_c", "req_a", "req_b"]


def test_finished_ask_is_not_run_again_but_can_be_read(family, store):
    request, records = whole(token_ids=(4, 5))
    store.commit(records)
    assert store.recover().asks == ()
    history = store.history("req_1")
    assert history.is_over
    assert history.requests[0].output == [4, 5]
    assert history.requests[0].finished == finished(request, 2)


def test_ask_with_one_branch_over_still_runs(store):
    one, other = a_request(), a_request()
    store.commit([*begun(one), *begun(other), ask_of(one, other), finished(one, 0)])
    (ask,) = store.recover().asks
    assert [r.finished is None for r in ask.requests] == [False, True]


def test_request_without_its_ask_is_an_orphan(store):
    request = a_request()
    store.commit(begun(request, epoch=2))
    assert store.recover().orphans == ((request.id, Epoch(2)),)
    store.commit([finished(request, 0)])
    assert store.recover().orphans == ()
    store.forget(0)
    assert store.verify() == []


def test_nobody_knows_other_asks(store):
    assert store.history("req_none") is None
    assert store.find_key(TenantId("t"), "") is None


def test_idempotency_key_finds_the_newest_ask_of_its_tenant(store):
    for number in (1, 2):
        _, records = whole(f"req_{number}", created_s=number, key_digest="k")
        store.commit(records)
    assert store.find_key(TenantId("t"), "k") == "req_2"
    assert store.find_key(TenantId("other"), "k") is None


def test_content_is_gone_once_its_time_is_over(family, store):
    _, records = whole(token_ids=tuple(range(5_000, 5_040)))
    store.commit(records)
    needles = (bytes.fromhex("cd1388cd1389cd138a"), b'{"model":"fake"}')  # MessagePack's tokens
    assert all(needle in family.kept() for needle in needles)
    assert store.forget(2_000) == 0
    assert store.forget(2_001) == 1
    assert store.history("req_1") is None
    assert list(store.summaries()) == []
    assert store.compact(2_001).asks == 0
    assert not any(needle in family.kept() for needle in needles)


def test_running_asks_are_never_forgotten(store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    assert store.forget(10**12) == 0
    assert len(store.recover().asks) == 1


def test_summaries_say_what_there_is(store):
    store.commit(whole("req_1", created_s=5)[1])
    request = a_request()
    store.commit([*begun(request), ask_of(request, ask_id="req_2", created_s=6)])
    newest, oldest = store.summaries()
    assert (newest.id, newest.finished_s, newest.requests) == ("req_2", None, 1)
    assert (oldest.id, oldest.finished_s) == ("req_1", 2_000)


def test_older_owner_writes_nothing_more(family, store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    younger = family.open()
    with pytest.raises(StoreFenced):
        store.commit([tokens(request, 0, 1)])
    (ask,) = younger.recover().asks
    assert ask.requests[0].output == []
    younger.commit([tokens(request, 0, 9)])
    assert younger.recover().asks[0].requests[0].output == [9]
    younger.close()


def test_full_store_writes_nothing_and_takes_the_same_commit_later(tmp_path):
    store = SqliteStore(tmp_path, pages_max=24)
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    large = [tokens(request, 0, *range(60_000))]
    with pytest.raises(StoreFull):
        store.commit(large)
    assert store.history("req_1").requests[0].output == []
    store._connection.execute("PRAGMA max_page_count = 4096")
    store.commit(large)
    assert len(store.history("req_1").requests[0].output) == 60_000
    store.close()


def test_damaged_record_sets_its_ask_aside_and_no_other(family, store):
    one, other = a_request(), a_request()
    store.commit([*begun(one), ask_of(one, ask_id="req_1"), tokens(one, 0, 1)])
    store.commit([*begun(other), ask_of(other, ask_id="req_2"), tokens(other, 0, 2)])
    store.close()
    ((seq, blob),) = family.tamper(
        "SELECT seq, blob FROM records WHERE owner = ? ORDER BY seq DESC LIMIT 1", one.id
    )
    for at in range(len(blob)):
        damaged = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
        family.tamper("UPDATE records SET blob = ? WHERE seq = ? RETURNING seq", damaged, seq)
        again = family.open()
        found = again.recover()
        assert [ask.asked.id for ask in found.asks] == ["req_2"]
        assert [damage.id for damage in found.damaged] == ["req_1"]
        again.close()
    assert [damage.id for damage in family.open(opening=Opening.READING).verify()] == ["req_1"]


def test_lost_token_record_is_noticed(family, store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    for index in range(3):
        store.commit([tokens(request, index, index)])
    store.close()
    family.tamper("DELETE FROM records WHERE seq = (SELECT max(seq) - 1 FROM records)")
    again = family.open()
    assert again.recover().asks == ()
    assert len(again.recover().damaged) == 1
    again.close()


WRITES_FOREVER = """
import itertools, sys
from tests.unit.journal.records import ask_of, begun, tokens
from mantle.testing.requests import a_request
store = OPEN
request = a_request(max_output_tokens=1_000_000)
store.commit([*begun(request), ask_of(request)])
for index in itertools.count():
    store.commit([tokens(request, index, index)])
    print(index, flush=True)
"""


def killed_while_writing(family):
    """Kill -9 in the middle; the last index that was acknowledged, and what is kept."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOREVER.replace("OPEN", family.open_code())],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    lines = list(itertools.islice(child.stdout, 50))
    child.kill()
    lines += child.stdout.readlines()
    child.wait()
    store = family.open()
    (ask,) = store.recover().asks
    store.close()
    complete = [line for line in lines if line.endswith("\n")]
    return int(complete[-1]), ask.requests[0].output


def test_what_was_acknowledged_survives_a_kill(family):
    acknowledged, output = killed_while_writing(family)
    assert output == list(range(len(output)))
    assert len(output) >= acknowledged + 1


def test_usage_counts_each_token_once_and_outlives_the_content(family, store):
    """Parked, gone on in a new epoch, ended; a branch trimmed by its stop string; then erased."""
    one, other = a_request(), a_request()
    store.commit([*begun(one), *begun(other), ask_of(one, other)])
    store.commit([tokens(one, 0, 1, 2), Parked(one.id, Epoch(1))])
    store.commit([Dispatched(one.id, Epoch(2), ReplicaId("w1/fake")), tokens(one, 2, 3, epoch=2)])
    store.commit([tokens(other, 0, 4, 5, 6), finished(other, 3)])
    assert [line.output_tokens for line in store.usage()] == [3], "only what ended"
    store.commit([finished(one, 3), Trimmed(other.id, Usage(10, 4, 2))])
    family.clock_s = 2_000.0 + HOUR_S
    store.commit(whole("req_2", token_ids=(7,))[1])
    expected = [(0, 2, 20, 4, 5), (3_600, 1, 10, 0, 1)]
    for forgotten in (0, 1, 1):  # before, then erased twice: nothing is lost or doubled
        assert [
            (line.hour_s, line.requests, line.input_tokens, line.cached_tokens, line.output_tokens)
            for line in store.usage()
        ] == expected
        assert {(line.tenant_id, line.model_id, line.outcome) for line in store.usage()} == {
            (one.tenant_id, one.model_id, "completed")
        }
        assert store.forget(2_001 if forgotten else 0) in (0, 1)
    assert store.history("req_1") is None
    assert [line.hour_s for line in store.usage(since_s=HOUR_S + 5)] == [3_600]


def test_file_is_for_its_owner_only(tmp_path):
    SqliteStore(tmp_path).close()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


def test_file_of_an_older_mantle_is_brought_up_to_date(tmp_path):
    """The tables of version 1, as they were made by the first version that had a journal."""
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as raw:
        raw.executescript(sqlite_module._SCHEMA)
        raw.execute("INSERT INTO requests (id, is_finished) VALUES ('old', 1)")
        raw.commit()
    store = SqliteStore(tmp_path)
    store.commit(whole()[1])
    store.close()
    again = SqliteStore(tmp_path)
    assert sum(line.output_tokens for line in again.usage()) == 3
    again.close()
