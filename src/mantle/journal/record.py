"""What is written down of a request? One frozen struct a record, versioned by its tag.

Invariant: replaying the records of an ask in order gives its exact state; nothing hidden
(penalties, stop-string tails, detokeniser tails) is stored, because all of it follows from the
accepted request and the token ids. Log-probabilities do not follow from them, so they are stored.
"""

import msgspec

from mantle.core.epoch import Epoch
from mantle.core.ids import ReplicaId, RequestId, TenantId
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.request import Request
from mantle.core.tokens import TokenLogprob, Usage


class Pins(msgspec.Struct, frozen=True):
    """Digests of what made the tokens; a difference at resume makes the rest inexact."""

    model: str = ""
    template: str = ""


class Choice(msgspec.Struct, frozen=True):
    """Which request is which choice of an ask, and which of the ask's prompts it answers."""

    request_id: RequestId
    prompt_index: int = 0


class Asked(msgspec.Struct, frozen=True, tag="asked.1"):
    """One HTTP request, with all that is needed to answer it again after a crash.

    `id` is the `x-request-id`. `body` is the client's own body (empty when nothing may be kept);
    `key_digest` that of tenant and `Idempotency-Key` (empty: none was given) and `body_digest`
    that of the body, to tell a repeat from a mistake. `created_s` is in Unix seconds. `streams`:
    the client saw `id` before the end, so it can ask for the rest.
    """

    id: str
    tenant_id: TenantId
    route: str
    body: bytes
    created_s: int
    choices: tuple[Choice, ...]
    pins: Pins = Pins()
    key_digest: str = ""
    body_digest: str = ""
    streams: bool = True

    def __repr__(self) -> str:
        return f"Asked({self.id}, {self.route}, {len(self.body)} bytes)"


class Accepted(msgspec.Struct, frozen=True, tag="accepted.1"):
    """A request is in its queue. It is lost no more once its `Asked` is durable.

    `prompt_count` is set when the prompt itself is not kept.
    """

    request: Request
    prompt_count: int = 0


class Dispatched(msgspec.Struct, frozen=True, tag="dispatched.1"):
    """An attempt has begun; tokens of older epochs no longer count."""

    request_id: RequestId
    epoch: Epoch
    replica_id: ReplicaId


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens.1"):
    """Output tokens from position `first_index` on.

    `count` tokens: as many as `token_ids`, unless nothing may be kept (then there are no ids).
    `scores`, when asked for, has one entry a token; `prompt_scores` and `cached_tokens` come with
    the first tokens of the first attempt.
    """

    request_id: RequestId
    epoch: Epoch
    first_index: int
    token_ids: list[int]
    count: int
    scores: list[TokenLogprob] | None = None
    prompt_scores: list[TokenLogprob] | None = None
    cached_tokens: int = 0

    def __repr__(self) -> str:
        return f"Tokens({self.request_id}, from {self.first_index}, {self.count} tokens)"


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


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed.1"):
    """After `Finished`: a stop string was found in the tokens already written, so the text ends
    sooner and only `usage` counts.
    """

    request_id: RequestId
    usage: Usage


Record = Asked | Accepted | Dispatched | Tokens | Parked | Finished | Trimmed
