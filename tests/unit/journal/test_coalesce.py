"""Does joining tokens change what the records say?"""

from hypothesis import given
from hypothesis import strategies as st

from mantle.core.epoch import Epoch
from mantle.core.ids import ReplicaId
from mantle.journal.coalesce import coalesce
from mantle.journal.codec import owner_of
from mantle.journal.history import request_history
from mantle.journal.record import Dispatched, Parked
from mantle.testing.requests import a_request
from tests.unit.journal.records import begun, finished, tokens


def road(request, moves):
    """A request's records: tokens, and now and then a park and a new attempt."""
    records, produced, epoch = begun(request), 0, 1
    for is_token in moves:
        if is_token:
            records.append(tokens(request, produced, produced + 100, epoch=epoch))
            produced += 1
        else:
            records.append(Parked(request.id, Epoch(epoch)))
            epoch += 1
            records.append(Dispatched(request.id, Epoch(epoch), ReplicaId("w0/fake")))
    return [*records, finished(request, produced)]


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20), st.randoms())
def test_histories_stay_the_same(one_moves, other_moves, random):
    one, other = a_request(), a_request()
    roads = [road(one, one_moves), road(other, other_moves)]
    mixed = []
    while any(roads):
        mixed.append(random.choice([r for r in roads if r]).pop(0))
    joined = coalesce(mixed)
    for request in (one, other):
        mine = [r for r in mixed if owner_of(r) == request.id]
        less = [r for r in joined if owner_of(r) == request.id]
        before, after = request_history(mine), request_history(less)
        assert after.output == before.output
        assert (after.epoch, after.finished) == (before.epoch, before.finished)


def test_tokens_of_many_steps_become_one_row():
    one, other = a_request(), a_request()
    records = []
    for step in range(50):
        records += [tokens(one, step, step), tokens(other, step, step)]
    assert len(coalesce(records)) == 2
