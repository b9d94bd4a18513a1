"""Small asks and their records, for tests of the journal."""

from mantle.core.epoch import Epoch
from mantle.core.ids import ReplicaId, TenantId
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.tokens import TokenLogprob, Usage
from mantle.journal.record import Accepted, Asked, Choice, Dispatched, Finished, Tokens
from mantle.testing.requests import a_request


def ask_of(*requests, ask_id="req_1", created_s=1_000, key_digest=""):
    return Asked(
        ask_id,
        TenantId("t"),
        "chat_completions",
        b'{"model":"fake"}',
        created_s,
        tuple(Choice(request.id) for request in requests),
        key_digest=key_digest,
    )


def begun(request, epoch=1):
    return [Accepted(request), Dispatched(request.id, Epoch(epoch), ReplicaId("w0/fake"))]


def tokens(request, first_index, *token_ids, epoch=1):
    return Tokens(request.id, Epoch(epoch), first_index, list(token_ids), len(token_ids))


def scored(request, first_index, *token_ids):
    scores = [TokenLogprob(one, -0.5, ((one, -0.5), (7, -1.25))) for one in token_ids]
    return Tokens(request.id, Epoch(1), first_index, list(token_ids), len(token_ids), scores)


def finished(request, output_tokens):
    usage = Usage(len(request.prompt_tokens), 0, output_tokens)
    return Finished(request.id, Outcome.COMPLETED, FinishReason.END, usage)


def whole(ask_id="req_1", *, token_ids=(1, 2, 3), created_s=1_000, key_digest=""):
    """A request from its acceptance to its end."""
    request = a_request()
    return request, [
        *begun(request),
        ask_of(request, ask_id=ask_id, created_s=created_s, key_digest=key_digest),
        tokens(request, 0, *token_ids),
        finished(request, len(token_ids)),
    ]
