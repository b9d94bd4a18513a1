"""What may be written of a request that keeps nothing: no token, text or score; same counts."""

import dataclasses

from mantle.core.sampling import SamplingParams
from mantle.journal.coalesce import coalesce
from mantle.journal.codec import encode
from mantle.journal.history import request_history
from mantle.journal.record import Accepted, Tokens
from mantle.journal.retention import redacted
from mantle.testing.requests import a_request
from tests.unit.journal.records import begun, finished, scored, tokens

SECRET = 70_001


def secret_request():
    request = a_request(sampling=SamplingParams(logit_bias=((SECRET, 1.0),)))
    return dataclasses.replace(
        request, prompt_tokens=(SECRET,) * 4, stop_strings=("secret",), keeps_content=False
    )


def test_redacted_records_hold_no_content() -> None:
    request = secret_request()
    for record in (Accepted(request), tokens(request, 0, SECRET), scored(request, 1, SECRET)):
        assert b"secret" in encode(Accepted(request)), "the control: unredacted it is there"
        blob = encode(redacted(record))
        assert b"secret" not in blob
        assert SECRET.to_bytes(4, "big") not in blob


def test_redacted_records_fold_to_the_same_counts() -> None:
    request = secret_request()
    written = [*begun(request), tokens(request, 0, 1, 2), tokens(request, 2, 3)]
    history = request_history(map(redacted, written))
    assert (history.prompt_count, history.output_count) == (4, 3)
    assert history.output == []


def test_redacted_tokens_are_joined_like_others() -> None:
    request = secret_request()
    (joined,) = coalesce([redacted(tokens(request, 0, 1, 2)), redacted(tokens(request, 2, 3))])
    assert isinstance(joined, Tokens)
    assert (joined.first_index, joined.count, joined.token_ids) == (0, 3, [])


def test_ends_stay_as_they_are() -> None:
    end = finished(secret_request(), 3)
    assert redacted(end) is end
