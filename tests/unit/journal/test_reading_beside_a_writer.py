"""Does a reader see one moment of the journal while somebody writes? `verify` counts on it."""

import itertools
import threading

from mantle.journal.stores.sqlite import Opening, SqliteStore
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, tokens


def test_verify_beside_a_writer_finds_the_journal_sound(tmp_path):
    store, request, done = SqliteStore(tmp_path, synchronous="OFF"), a_request(), threading.Event()
    store.commit([*begun(request), ask_of(request)])

    def write():
        for index in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
            store.commit([tokens(request, index, index)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reader = SqliteStore(tmp_path, opening=Opening.READING)
        found = [reader.verify() for _ in range(50)]
    finally:
        done.set()
        writer.join()
    assert found == [[]] * 50
    (ask,) = store.recover().asks
    assert ask.requests[0].output_count > 50, "the control: it wrote meanwhile"
    store.close()
