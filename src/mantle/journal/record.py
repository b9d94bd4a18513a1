"""What is written down of a request? One frozen struct a record, versioned by its tag.

Invariant: replaying the records of a request in order gives its exact state; nothing hidden
(penalties, stop-string tails, detokeniser tails) is stored, because all of it follows from the
accepted request and the token ids.
"""

import msgspec

from mantle.core.epoch import Epoch
from mantle.core.ids import ReplicaId, RequestId
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.request import Request
from mantle.core.tokens import Usage


class Accepted(msgspec.Struct, frozen=True, tag="accepted.1"):
    """From here on the request can not be lost."""

    request: Request


class Dispatched(msgspec.Struct, frozen=True, tag="dispatched.1"):
    """An attempt has begun; tokens of older epochs no longer count."""

    request_id: RequestId
    epoch: Epoch
    replica_id: ReplicaId


class Tokens(msgspec.Struct, frozen=True, tag="tokens.1"):
    """Output tokens from position `first_index` on."""

    request_id: RequestId
    epoch: Epoch
    first_index: int
    token_ids: list[int]


class Parked(msgspec.Struct, frozen=True, tag="parked.1"):
    """The attempt gave way after the tokens written so far; the request goes on later."""

    request_id: RequestId
    epoch: Epoch


class Finished(msgspec.Struct, frozen=True, tag="finished.1"):
    """The request is over; `finish` is set when it completed."""

    request_id: RequestId
    outcome: Outcome
    finish: FinishReason | None
    usage: Usage


Record = Accepted | Dispatched | Tokens | Parked | Finished
