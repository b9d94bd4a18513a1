"""What can happen between us and a database: it dies, it comes back, we do not know what landed."""

import threading

import psycopg
import pytest

from mantle.core.epoch import Epoch
from mantle.journal.store_port import Opening, StoreAway, StoreBroken, StoreFenced
from mantle.journal.stores.postgres import PostgresStore
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, tokens

pytestmark = pytest.mark.process


@pytest.fixture
def store(postgres, postgres_schema):
    opened = PostgresStore(postgres.url, schema=postgres_schema)
    yield opened
    opened.close()


def output_of(store):
    (ask,) = store.recover().asks
    return ask.requests[0].output


def cut(postgres, store):
    """End the store's connection on the server's side."""
    pid = store._connection.info.backend_pid
    postgres.execute("SELECT pg_terminate_backend(%s, 5000)", pid)


def test_a_broken_connection_loses_nothing_and_is_made_again(postgres, store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    cut(postgres, store)
    with pytest.raises(StoreAway):
        store.commit([tokens(request, 0, 1)])
    store.commit([tokens(request, 0, 1)])
    assert output_of(store) == [1]


class CutAtCommit(PostgresStore):
    """The connection breaks just before, or just after, the server heard COMMIT."""

    when = ""

    def _landed(self):
        if self.when == "after":
            self.when = ""
            raise psycopg.OperationalError("the answer was lost")
        super()._landed()


@pytest.mark.parametrize("when", ["", "after"])
def test_a_commit_whose_answer_was_lost_is_not_written_twice(postgres, postgres_schema, when):
    store = CutAtCommit(postgres.url, schema=postgres_schema)
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    store.when = when
    records = [tokens(request, 0, 1)]
    if when:
        with pytest.raises(psycopg.OperationalError):
            store.commit(records)
        store._connection.close()
        assert output_of(store) == [1], "the control: it had landed"
    store.commit(records)
    store.commit([tokens(request, 1, 2)])
    assert output_of(store) == [1, 2]
    store.close()


def test_a_commit_that_never_landed_is_written_at_the_next_try(postgres, store):
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    store._may_have_landed = True
    store.commit([tokens(request, 0, 1)])
    assert output_of(store) == [1]


def test_a_new_owner_waits_for_the_commit_under_way_and_then_fences(postgres, store):
    """The owner's row is locked from the first statement to COMMIT: there is no gap between."""
    request = a_request()
    store.commit([*begun(request), ask_of(request)])
    opened = []
    with store._writing() as session:
        opener = threading.Thread(
            target=lambda: opened.append(PostgresStore(postgres.url, schema=store._schema))
        )
        opener.start()
        opener.join(0.2)
        assert opener.is_alive(), "it waits"
        session.write("UPDATE owner SET commits = ?", store._commits + 1)
    opener.join(20)
    store._commits += 1
    with pytest.raises(StoreFenced):
        store.commit([tokens(request, 0, 1)])
    opened[0].commit([tokens(request, 0, 9, epoch=1)])
    assert output_of(opened[0]) == [9]
    opened[0].close()


def test_what_was_acknowledged_survives_the_death_of_the_database(postgres, store):
    request = a_request(max_output_tokens=100)
    store.commit([*begun(request), ask_of(request)])
    for index in range(20):
        store.commit([tokens(request, index, index)])
    postgres.stop()
    try:
        with pytest.raises(StoreAway) as refused:
            store.commit([tokens(request, 20, 20)])
        assert str(postgres.folder) not in str(refused.value)
        with pytest.raises(StoreAway):
            store.recover()
    finally:
        postgres.start()
    store.commit([tokens(request, 20, 20)])
    assert output_of(store) == list(range(21))


def test_a_database_without_fsync_is_refused(postgres, postgres_schema):
    def set_fsync(value):
        postgres.execute(f"ALTER SYSTEM SET fsync = {value}")
        postgres.execute("SELECT pg_reload_conf()")
        for _ in range(1_000):  # the reload reaches new connections a moment later
            if postgres.execute("SHOW fsync") == [(value,)]:
                return
        pytest.fail("the setting never changed")

    set_fsync("off")
    try:
        with pytest.raises(StoreBroken, match="fsync"):
            PostgresStore(postgres.url, schema=postgres_schema)
    finally:
        set_fsync("on")


def test_no_such_database_is_said_without_its_address():
    with pytest.raises(StoreAway) as refused:
        PostgresStore("host=/nowhere-at-all password=secret dbname=x")
    assert "nowhere" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_schema_without_a_journal_is_said(postgres, postgres_schema):
    reader = PostgresStore(postgres.url, schema=postgres_schema, opening=Opening.READING)
    with pytest.raises(StoreBroken, match="no journal"):
        reader.recover()


def test_two_may_open_at_once(postgres, postgres_schema):
    """`CREATE … IF NOT EXISTS` alone fails here."""
    stores, errors = [], []

    def open_one():
        try:
            stores.append(PostgresStore(postgres.url, schema=postgres_schema))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert sorted(store._owner_epoch for store in stores) == [1, 2, 3, 4, 5, 6]
    for store in stores:
        store.close()


def test_epochs_of_attempts_are_as_in_the_other_store(store):
    request = a_request()
    store.commit(begun(request, epoch=3))
    assert store.recover().orphans == ((request.id, Epoch(3)),)
