"""What may be written down of a request that keeps no content? Counts, times and ends, no more.

Invariant: a redacted record has no token id, no text, no score, yet it folds to the same counts.
"""

import dataclasses

import msgspec

from mantle.core.sampling import SamplingParams
from mantle.journal.record import Accepted, Record, Tokens


def redacted(record: Record) -> Record:
    """The record without content."""
    if isinstance(record, Accepted):
        request = dataclasses.replace(
            record.request,
            prompt_tokens=(),
            stop_strings=(),
            sampling=SamplingParams(),
            grammar="",
        )
        return Accepted(request, len(record.request.prompt_tokens))
    if isinstance(record, Tokens):
        return msgspec.structs.replace(record, token_ids=[], scores=None, prompt_scores=None)
    return record
