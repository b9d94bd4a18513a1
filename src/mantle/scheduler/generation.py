"""How does a reader see its request? A mailbox of token chunks that ends exactly once.

Invariant: one writer (the dispatcher) and one reader; after the end or the failure nothing more is
put in; a reader that stops early cancels.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from mantle.core.errors import MantleError
from mantle.core.lane import Lane
from mantle.core.outcome import FinishReason
from mantle.core.request import Request
from mantle.core.tokens import Usage
from mantle.scheduler.port import Ended, Phases, QueueView, TokenChunk


class LiveGeneration:
    """Implements `Generation`. Times are on the injected clock, in milliseconds."""

    def __init__(
        self,
        request: Request,
        *,
        now_ms: Callable[[], float],
        view: Callable[["LiveGeneration"], QueueView | None],
        give_up: Callable[["LiveGeneration", FinishReason | None], None],
    ) -> None:
        self.request = request
        self.ended: Ended | None = None
        self.output_tokens = 0
        self.cached_tokens = 0
        self.dispatched_ms: float | None = None
        self.first_token_ms: float | None = None
        self._now_ms = now_ms
        self._view = view
        self._give_up = give_up
        self._chunks: deque[TokenChunk] = deque()
        self._error: MantleError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._over = False

    # --- the reader's side ----------------------------------------------------------------------
    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        while not self._chunks:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._chunks.popleft()

    def queue_view(self) -> QueueView | None:
        return None if self._over else self._view(self)

    def usage_so_far(self) -> Usage:
        return Usage(len(self.request.prompt_tokens), self.cached_tokens, self.output_tokens)

    def phases_so_far(self) -> Phases:
        now_ms = self._now_ms()
        accepted_ms = self.request.accepted_ms
        dispatched_ms = now_ms if self.dispatched_ms is None else self.dispatched_ms
        first_ms = now_ms if self.first_token_ms is None else self.first_token_ms
        return Phases(dispatched_ms - accepted_ms, first_ms - dispatched_ms, now_ms - first_ms)

    def cancel(self) -> None:
        if not self._over:
            self._give_up(self, None)

    def stop_at(self, output_tokens: int) -> None:
        if not self._over:
            self.output_tokens = output_tokens
            self._give_up(self, FinishReason.STOP_STRING)
        elif self.ended is not None:
            self._restate_stop(self.ended, output_tokens)

    # --- the dispatcher's side ------------------------------------------------------------------
    @property
    def is_over(self) -> bool:
        return self._over

    def put(self, chunk: TokenChunk) -> None:
        if self._over:
            return
        if self.first_token_ms is None:
            self.first_token_ms = self._now_ms()
        self.output_tokens = chunk.first_index + len(chunk.token_ids)
        self._chunks.append(chunk)
        self._wake()

    def end(self, finish: FinishReason, lane: Lane) -> Ended:
        """The last word; what was put before is still read first."""
        assert not self._over, "a generation ends once"
        self.ended = Ended(finish, self.usage_so_far(), self.phases_so_far(), lane)
        self._over = True
        self._wake()
        return self.ended

    def fail(self, error: MantleError) -> None:
        """It is over for the worse; the reader gets the error after what was put before."""
        assert not self._over, "a generation ends once"
        self._error = error
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _restate_stop(self, ended: Ended, output_tokens: int) -> None:
        """The engine was done before the reader found the stop string in the last tokens."""
        usage = Usage(ended.usage.input_tokens, ended.usage.cached_tokens, output_tokens)
        self.output_tokens = output_tokens
        self.ended = Ended(FinishReason.STOP_STRING, usage, ended.phases, ended.served_lane)
