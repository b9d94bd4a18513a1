"""Is a record what was written, or known to be damaged?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mantle.core.epoch import Epoch
from mantle.core.errors import JournalFault
from mantle.core.ids import RequestId
from mantle.core.tokens import TokenLogprob
from mantle.journal.codec import decode, encode, owner_of
from mantle.journal.record import Parked, Tokens, Trimmed
from mantle.testing.requests import a_request
from tests.unit.journal.records import ask_of, begun, finished, scored, whole

LOGPROBS = st.builds(
    TokenLogprob,
    st.integers(0, 2**31 - 1),
    st.none() | st.floats(-1e4, 0),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-1e4, 0)), max_size=3).map(tuple),
)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), LOGPROBS), max_size=8), st.booleans())
def test_tokens_come_back_as_they_were(pairs, with_scores):
    record = Tokens(
        RequestId("r"),
        Epoch(3),
        5,
        [token for token, _ in pairs],
        len(pairs),
        [score for _, score in pairs] if with_scores else None,
    )
    assert decode(encode(record), "r") == record


def test_every_kind_comes_back_as_it_was():
    request, records = whole()
    records += [Parked(request.id, Epoch(2)), Trimmed(request.id, finished(request, 1).usage)]
    for record in records:
        assert decode(encode(record), owner_of(record)) == record


def test_any_flipped_bit_is_noticed():
    request = a_request()
    for record in (*begun(request), ask_of(request), scored(request, 0, 5, 6)):
        blob, owner = encode(record), owner_of(record)
        for at in range(len(blob)):
            for bit in range(8):
                damaged = bytearray(blob)
                damaged[at] ^= 1 << bit
                with pytest.raises(JournalFault):
                    decode(bytes(damaged), owner)


def test_any_missing_byte_is_noticed():
    request = a_request()
    blob = encode(scored(request, 0, 5, 6))
    for length in range(len(blob)):
        with pytest.raises(JournalFault):
            decode(blob[:length], request.id)


def test_record_of_another_request_is_damage():
    one, other = a_request(), a_request()
    with pytest.raises(JournalFault):
        decode(encode(finished(one, 1)), other.id)
