"""Does even the journal that keeps nothing refuse what comes too late?"""

import pytest

from mantle.core.epoch import Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import ReplicaId
from mantle.core.outcome import Outcome
from mantle.core.tokens import Usage
from mantle.journal.record import Accepted, Dispatched, Finished, Tokens
from mantle.journal.stores.ephemeral import EphemeralJournal
from mantle.testing.requests import a_request

REQUEST = a_request()


@pytest.fixture
def journal():
    journal = EphemeralJournal()
    journal.append([Accepted(REQUEST)], lambda: None)
    journal.append([Dispatched(REQUEST.id, Epoch(2), ReplicaId("m#1"))], lambda: None)
    return journal


def test_committed_is_called_for_good_records(journal):
    calls = []
    journal.append([Tokens(REQUEST.id, Epoch(2), 0, [1], 1)], lambda: calls.append(1))
    assert calls == [1]


def test_older_epoch_is_refused(journal):
    with pytest.raises(JournalFault):
        journal.append([Tokens(REQUEST.id, Epoch(1), 0, [1], 1)], lambda: None)


def test_ended_request_takes_no_more_records(journal):
    journal.append([Finished(REQUEST.id, Outcome.COMPLETED, None, Usage())], lambda: None)
    assert journal.live_count() == 0
    with pytest.raises(JournalFault):
        journal.append([Tokens(REQUEST.id, Epoch(2), 0, [1], 1)], lambda: None)
