"""Which token would the model say at this position? A pure function of request and position.

Invariant: any two attempts of a request agree on every token, so one that was lost, doubled or
changed on its way to the client shows by its value.
"""

import zlib

from mantle.core.ids import RequestId

_STRIDE = 40_503  # odd, so that neighbours differ and no shift by a few positions looks right
_VOCABULARY = 1 << 16
_TEXT = [index * _STRIDE % _VOCABULARY for index in range(2 * _VOCABULARY)]


def tokens_of(request_id: RequestId, first_index: int, count: int) -> list[int]:
    """`count` output tokens of the request, from position `first_index` on.

    Each request reads the same text from a place of its own; longer outputs than that text fail.
    """
    start = zlib.crc32(request_id.encode()) % _VOCABULARY + first_index
    token_ids = _TEXT[start : start + count]
    assert len(token_ids) == count, "a paper output is at most as long as the vocabulary is large"
    return token_ids
