"""How does one read along, or read again? Generations for those who do not own them.

Invariant: tokens come one by one, so that a position in the stream means the same as in any other
reading; nothing that such a reader does touches the request.
"""

from collections.abc import AsyncIterator
from typing import Final

from mantle.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    MantleError,
    Unavailable,
)
from mantle.core.outcome import FinishReason, Outcome
from mantle.core.request import Request
from mantle.core.tokens import Usage
from mantle.journal.port import RequestHistory
from mantle.scheduler.port import (
    Ended,
    Generation,
    Phases,
    QueueView,
    TokenChunk,
    written_chunk,
)

NO_PHASES: Final = Phases(0.0, 0.0, 0.0)


class Follower:
    """Implements `Generation` beside its owner."""

    def __init__(self, inner: Generation) -> None:
        self.request: Request = inner.request
        self._inner = inner

    @property
    def ended(self) -> Ended | None:
        return self._inner.ended

    @property
    def resumed_inexactly(self) -> bool:
        return self._inner.resumed_inexactly

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        async for chunk in self._inner.replay():
            for single in single_tokens(chunk):
                yield single

    def replay(self) -> AsyncIterator[TokenChunk]:
        return self._inner.replay()

    def queue_view(self) -> QueueView | None:
        return self._inner.queue_view()

    def usage_so_far(self) -> Usage:
        return self._inner.usage_so_far()

    def phases_so_far(self) -> Phases:
        return self._inner.phases_so_far()

    def cancel(self) -> None:
        """Others may still read."""

    def stop_at(self, output_tokens: int) -> None:
        """The owner finds the same stop string."""


class PlayedOut:
    """Implements `Generation` over what the journal knows of a request that is over."""

    def __init__(self, history: RequestHistory) -> None:
        self.request: Request = history.request
        self.ended: Ended | None = None
        self.resumed_inexactly = False
        self._history = history

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        for single in single_tokens(written_chunk(self._history)):
            yield single
        end = self._history.finished
        if end is None or end.outcome is not Outcome.COMPLETED:
            raise _error_of(None if end is None else end.outcome)
        finish = end.finish or FinishReason.END
        self.ended = Ended(finish, end.usage, NO_PHASES, self.request.lane)

    def replay(self) -> AsyncIterator[TokenChunk]:
        return self.__aiter__()

    def queue_view(self) -> QueueView | None:
        return None

    def usage_so_far(self) -> Usage:
        end = self._history.finished
        return Usage(self._history.prompt_count) if end is None else end.usage

    def phases_so_far(self) -> Phases:
        return NO_PHASES

    def cancel(self) -> None:
        """It is over."""

    def stop_at(self, output_tokens: int) -> None:
        """It is over."""


def single_tokens(chunk: TokenChunk) -> list[TokenChunk]:
    """The chunk, one token at a time; the prompt's scores come with the first."""
    if len(chunk.token_ids) <= 1:
        return [chunk]
    return [
        TokenChunk(
            chunk.first_index + place,
            (token_id,),
            None if chunk.logprobs is None else chunk.logprobs[place : place + 1],
            chunk.prompt_logprobs if place == 0 else None,
        )
        for place, token_id in enumerate(chunk.token_ids)
    ]


def _error_of(outcome: Outcome | None) -> MantleError:
    if outcome is None:
        return Unavailable("the request is not running just now", hint="retry shortly")
    if outcome is Outcome.CANCELLED:
        return Cancelled("the request was cancelled")
    if outcome is Outcome.EXPIRED:
        return DeadlineExceeded("the request waited too long")
    return EngineFailed("the request failed; send it again")
