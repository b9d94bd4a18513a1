"""How do a request's tokens of many steps become one row? What one commit has of them is joined.

Invariant: folding the result gives what folding the input gives; no record passes another one of
its own request.
"""

from collections.abc import Sequence

import msgspec

from mantle.journal.codec import owner_of
from mantle.journal.record import Record, Tokens


def coalesce(records: Sequence[Record]) -> list[Record]:
    """The records, neighbouring tokens of a request joined."""
    joined: list[Record] = []
    open_at: dict[str, int] = {}  # a request's last record in `joined`, when it is Tokens
    for record in records:
        owner = owner_of(record)
        if not isinstance(record, Tokens):
            open_at.pop(owner, None)
            joined.append(record)
            continue
        at = open_at.get(owner)
        before = joined[at] if at is not None else None
        if isinstance(before, Tokens) and at is not None and _follows(before, record):
            joined[at] = _join(before, record)
        else:
            open_at[owner] = len(joined)
            joined.append(record)
    return joined


def _follows(before: Tokens, after: Tokens) -> bool:
    return (
        before.epoch == after.epoch
        and before.first_index + before.count == after.first_index
        and (before.scores is None) == (after.scores is None)
        and after.prompt_scores is None
        and not after.cached_tokens
    )


def _join(before: Tokens, after: Tokens) -> Tokens:
    scores = None if before.scores is None else before.scores + (after.scores or [])
    return msgspec.structs.replace(
        before,
        token_ids=before.token_ids + after.token_ids,
        count=before.count + after.count,
        scores=scores,
    )
