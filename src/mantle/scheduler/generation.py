"""How does a reader see its request? A log of token chunks that ends exactly once.

Invariant: one writer (the dispatcher), any number of readers, each from the first token on; after
the end or the failure nothing more is put in. What is put in has been committed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from mantle.core.errors import MantleError
from mantle.core.outcome import FinishReason
from mantle.core.request import Request
from mantle.core.tokens import Usage
from mantle.scheduler.port import Ended, Phases, QueueView, TokenChunk


class _Reader:
    """One pass over a generation's chunks."""

    def __init__(self, generation: "LiveGeneration") -> None:
        self._generation = generation
        self._position = 0

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        chunk = await self._generation.chunk_at(self._position)
        self._position += 1
        return chunk


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
        self.resumed_inexactly = False
        self._error: MantleError | None = None
        self.dispatched_ms: float | None = None
        self.first_token_ms: float | None = None
        self._now_ms = now_ms
        self._view = view
        self._give_up = give_up
        self._chunks: list[TokenChunk] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._over = False
        self._owner = _Reader(self)

    # --- the readers' side ----------------------------------------------------------------------
    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return self

    async def __anext__(self) -> TokenChunk:
        return await self._owner.__anext__()

    def replay(self) -> AsyncIterator[TokenChunk]:
        """See `Generation.replay`."""
        return _Reader(self)

    async def chunk_at(self, position: int) -> TokenChunk:
        """Wait for a chunk. Raises `StopAsyncIteration` or the error after the last one."""
        while position >= len(self._chunks):
            if self._error is not None:
                raise self._error
            if self._over:
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self._chunks[position]

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
        if self._error is not None:
            return
        if self.ended is not None and self.ended.finish is FinishReason.STOP_STRING:
            return
        self._over = False  # perhaps the engine was done before the stop string was found
        self.output_tokens = output_tokens
        self._give_up(self, FinishReason.STOP_STRING)

    # --- the dispatcher's side ------------------------------------------------------------------
    @property
    def is_over(self) -> bool:
        return self._over

    def put(self, chunk: TokenChunk, cached_tokens: int) -> None:
        """Show a chunk; `cached_tokens` of the prompt were not computed for it."""
        if self._over:
            return
        self.cached_tokens = cached_tokens
        if self.first_token_ms is None:
            self.first_token_ms = self._now_ms()
        self.output_tokens = chunk.first_index + len(chunk.token_ids)
        self._chunks.append(chunk)
        self._wake()

    def end(self, finish: FinishReason, usage: Usage) -> None:
        """The last word; what was put before is still read first."""
        assert not self._over, "a generation ends once"
        self.output_tokens = usage.output_tokens
        self.ended = Ended(finish, usage, self.phases_so_far(), self.request.lane)
        self._over = True
        self._wake()

    def fail(self, error: MantleError) -> None:
        """It is over for the worse; readers get the error after what was put before."""
        assert not self._over, "a generation ends once"
        self._error = error
        self._over = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
