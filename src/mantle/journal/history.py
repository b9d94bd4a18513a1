"""What do the records of a request say, taken together? A pure fold.

Invariant: the order of `append` is the order of the fold; records that break the rules (older
epoch, a gap in the tokens, after the end) raise `JournalFault`, so a damaged request is never
mistaken for a sound one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mantle.core.epoch import FIRST_EPOCH, Epoch
from mantle.core.errors import JournalFault
from mantle.core.request import Request
from mantle.core.tokens import TokenLogprob
from mantle.journal.record import (
    Accepted,
    Asked,
    Dispatched,
    Finished,
    Parked,
    Record,
    Tokens,
    Trimmed,
)


@dataclass(slots=True, repr=False)
class RequestHistory:
    """One request as the journal knows it. `epoch` is its newest attempt's.

    `output` are the durable tokens (only their number, `output_count`, when nothing may be kept),
    `scores` their log-probabilities when asked for.
    """

    request: Request
    prompt_count: int = 0
    epoch: Epoch = FIRST_EPOCH
    was_dispatched: bool = False
    output: list[int] = field(default_factory=list)
    output_count: int = 0
    scores: list[TokenLogprob] = field(default_factory=list)
    prompt_scores: tuple[TokenLogprob, ...] | None = None
    cached_tokens: int = 0
    finished: Finished | None = None

    def __repr__(self) -> str:
        return f"RequestHistory({self.request.id}, {self.output_count} tokens)"


@dataclass(frozen=True, slots=True)
class AskHistory:
    """One ask and its requests, in the order of `asked.choices`."""

    asked: Asked
    requests: tuple[RequestHistory, ...]

    @property
    def is_over(self) -> bool:
        return all(request.finished is not None for request in self.requests)


def request_history(records: Iterable[Record]) -> RequestHistory:
    """Fold one request's records. Raises `JournalFault` when they cannot be right."""
    history: RequestHistory | None = None
    for record in records:
        if isinstance(record, Accepted):
            if history is not None:
                raise JournalFault("a request was accepted twice")
            prompt_count = record.prompt_count or len(record.request.prompt_tokens)
            history = RequestHistory(record.request, prompt_count)
        elif history is None:
            raise JournalFault("a request has records but was never accepted")
        else:
            _apply(history, record)
    if history is None:
        raise JournalFault("a request has no records")
    return history


def _apply(history: RequestHistory, record: Record) -> None:
    if isinstance(record, Trimmed):
        if history.finished is None:
            raise JournalFault("a request was trimmed before its end")
        end = history.finished
        history.finished = Finished(end.request_id, end.outcome, end.finish, record.usage)
        return
    if history.finished is not None:
        raise JournalFault("a record came after the request's end")
    if isinstance(record, Finished):
        history.finished = record
        return
    assert isinstance(record, Dispatched | Tokens | Parked), "an ask is not a request's record"
    if record.epoch < history.epoch:
        raise JournalFault("a record came from an older epoch")
    if isinstance(record, Dispatched):
        history.epoch, history.was_dispatched = record.epoch, True
    elif isinstance(record, Tokens):
        _add_tokens(history, record)


def _add_tokens(history: RequestHistory, record: Tokens) -> None:
    if record.epoch != history.epoch or record.first_index != history.output_count:
        raise JournalFault("a request's tokens have a gap")
    history.output += record.token_ids
    history.output_count += record.count
    history.scores += record.scores or ()
    if record.prompt_scores is not None:
        history.prompt_scores = tuple(record.prompt_scores)
    history.cached_tokens = history.cached_tokens or record.cached_tokens
