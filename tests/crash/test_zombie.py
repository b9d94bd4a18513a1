"""Can a server that came back from the dead spoil a journal? Not with its epochs checked.

The controls switch each check off, and show what it keeps out: tokens that come twice. Even then
the last line holds: what was spoiled is set aside, never served.
"""

import sqlite3

import pytest

from mantle.core.epoch import Epoch
from mantle.journal.record import Dispatched
from mantle.journal.store_port import StoreFenced
from mantle.journal.stores.sqlite import FILE_NAME, SqliteStore
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, tokens


class Two:
    """A server that stood still, and the one that took over after it had made two tokens."""

    def __init__(self, folder):
        self.folder = folder
        self.request = a_request()
        self.zombie = SqliteStore(folder)
        self.zombie.commit([*begun(self.request), ask_of(self.request)])
        self.zombie.commit([tokens(self.request, 0, 10, 11)])
        self.younger = SqliteStore(folder)
        self.younger.commit([Dispatched(self.request.id, Epoch(2), "w1/fake")])

    def turn_owner(self, by):
        """Pretend that the zombie owned the journal (-1), or take that back (1)."""
        with sqlite3.connect(self.folder / FILE_NAME) as raw:
            raw.execute("UPDATE owner SET epoch = epoch + ?", (by,))
        raw.close()

    def zombie_writes(self, record):
        self.turn_owner(-1)
        self.zombie.commit([record])
        self.turn_owner(1)

    def close(self):
        self.zombie.close()
        self.younger.close()


@pytest.fixture
def two(tmp_path):
    made = Two(tmp_path)
    yield made
    made.close()


def test_zombie_writes_nothing(two):
    with pytest.raises(StoreFenced):
        two.zombie.commit([tokens(two.request, 2, 77)])
    two.younger.commit([tokens(two.request, 2, 12, epoch=2)])
    (ask,) = two.younger.recover().asks
    assert ask.requests[0].output == [10, 11, 12]
    assert two.younger.verify() == []


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("is_first", [True, False])
def test_control_without_the_owner_check_tokens_come_twice(two, epoch, is_first):
    """`epoch` 2: the attempt's epoch is not checked either."""
    late = tokens(two.request, 2, 77, epoch=epoch)
    if is_first:
        two.zombie_writes(late)
    two.younger.commit([tokens(two.request, 2, 12, epoch=2)])
    if not is_first:
        two.zombie_writes(late)
    found = two.younger.recover()
    assert found.asks == (), "spoiled, so it must not be served"
    assert [damage.id for damage in found.damaged] == ["req_1"]
    assert [damage.id for damage in two.younger.verify()] == ["req_1"]
    with sqlite3.connect(two.folder / FILE_NAME) as raw:
        query = "SELECT count(*) FROM records WHERE owner = ?"
        (count,) = raw.execute(query, (two.request.id,)).fetchone()
    raw.close()
    assert count == 6, "accepted, begun, tokens, begun again, and twice the token at position 2"
